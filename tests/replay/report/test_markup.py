"""Tests that text in HTML can't break the structure of elements."""

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from replay.report.markup import Markup, element, joined


def test_text_is_escaped_and_markup_is_not() -> None:
    inner = element("b", "<&>\"'")
    assert inner == "<b>&lt;&amp;&gt;&quot;&#x27;</b>"
    assert element("p", "a < b ", inner, [inner, inner]) == f"<p>a &lt; b {inner}{inner}{inner}</p>"
    assert isinstance(inner, Markup)
    assert joined([inner, inner]) == f"{inner}{inner}"


def test_markup_that_was_formatted_into_text_is_text_again() -> None:
    assert element("p", f"{element('b', 'x')}") == "<p>&lt;b&gt;x&lt;/b&gt;</p>"


def test_attributes() -> None:
    assert (
        element("i", class_="a", aria_label='"', x=1.5, title="")
        == '<i class="a" aria-label="&quot;" x="1.5"></i>'
    )


@given(text=st.text(), value=st.text(min_size=1))
def test_a_parser_reads_back_what_was_put_in(text: str, value: str) -> None:
    seen: list[object] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            seen.append((tag, attrs))

        def handle_data(self, data: str) -> None:
            seen.append(data)

        def handle_endtag(self, tag: str) -> None:
            seen.append("/" + tag)

    reader = Reader()
    reader.feed(element("p", text, title=value))
    reader.close()
    assert seen == [("p", [("title", value)]), *([text] if text else []), "/p"]
