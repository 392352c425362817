"""The table of BENCHMARKS.md that compares fetchgate with the floor, and the page itself."""

import pytest

from tools.bench import floor
from tools.bench.figures import FigureRow, FigureTable
from tools.bench.page import page, prose


def figure(value: float, name: str = "fetches: CPU in the floor's") -> FigureRow:
    values = {"direct": 9.0, "floor": 1.0, "haproxy": 1.1, "gateway": value}
    return FigureRow("CPU in the floor's", "times", values, limit=1.25, figure=name)


def table(*rows: FigureRow, part: str = "idle", title: str = "Idle") -> FigureTable:
    return FigureTable(title, rows)


class TestTable:
    def test_it_has_the_marked_rows_of_all_parts_side_by_side(self) -> None:
        unmarked = FigureRow("broker", "%", {"gateway": 3.0})
        summary = floor.to_floor([table(unmarked, figure(1.2)), table(figure(1.3, "bulk"), part="bulk")])

        assert summary.columns == ["floor", "haproxy", "gateway"]
        assert [(row.name, row.met) for row in summary.rows] == [
            ("fetches: CPU in the floor's", True),
            ("bulk", False),
        ]
        assert summary.rows[0].values == {"floor": 1.0, "haproxy": 1.1, "gateway": 1.2}

    @pytest.mark.parametrize(("least", "shown"), [(False, 1.04), (True, 1.02)])
    def test_of_two_modes_the_worse_one_counts(self, least: bool, shown: float) -> None:
        values = {"plain group": 1.0, "one gateway": 1.02, "one each": 1.04}
        row = FigureRow("CPU", "times", values, limit=1.03, least=least, figure="sidecars")

        assert floor.to_floor([table(row)]).rows[0].values == {"gateway": shown}

    def test_its_columns_are_the_same_for_every_part(self) -> None:
        row = FigureRow("CPU", "times", {"one each": 1.1}, figure="sidecars")

        assert floor.to_floor([table(row)]).columns == ["floor", "haproxy", "gateway"]


class TestPage:
    def write(self, *tables: FigureTable, before: str = "", only: list[str] | None = None) -> str:
        return page(floor.to_floor(tables), tables, before, only)

    def test_it_begins_with_the_comparison_and_what_was_missed(self) -> None:
        text = self.write(table(figure(1.3)), table(figure(1.2, "bulk"), part="bulk", title="Bulk"))

        assert text.startswith(
            "## To the floor\n\n|  | unit | floor | haproxy | gateway | target |  |\n"
            "| --- | --- | ---: | ---: | ---: | ---: | ---: |\n"
            "| fetches: CPU in the floor's | times | 1 | 1.10 | 1.30 | ≤ 1.25 | missed |\n"
            "| bulk | times | 1 | 1.10 | 1.20 | ≤ 1.25 | met |\n"
        )
        assert "1 of 2 targets are met. Missed:\n\n- Idle: CPU in the floor's (≤ 1.25)\n\n**Idle**" in text

    def test_parts_alone_replace_their_rows_and_keep_the_others(self) -> None:
        idle, bulk = figure(1.3, "idle"), figure(1.4, "bulk")
        before = self.write(table(idle), table(bulk, part="bulk", title="Bulk"))
        text = self.write(table(figure(1.2, "idle")), before=before, only=["idle"])

        lines = text.splitlines()
        assert lines[4:6] == [
            "| idle | times | 1 | 1.10 | 1.20 | ≤ 1.25 | met |",
            "| bulk | times | 1 | 1.10 | 1.40 | ≤ 1.25 | missed |",
        ]
        assert "1 of 2 targets are met. Missed:\n\n- Bulk: CPU in the floor's" in text
        assert text.count("**Bulk**") == text.count("**Idle**") == 1

    def test_the_text_of_people_stays_between_comparison_and_tables(self) -> None:
        before = self.write(table(figure(1.3))).replace("**Idle**", "## Why\n\nWords.\n\n## All\n\n**Idle**")
        text = self.write(table(figure(1.2)), before=before)

        assert "1 of 1 targets are met.\n\n## Why\n\nWords.\n\n## All\n\n**Idle**" in text
        assert prose(text, "To the floor") == "## Why\n\nWords.\n\n## All"
        assert text.count("## To the floor") == 1
