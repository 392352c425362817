"""A report in which every name tries to attack the reader's terminal, browser or spreadsheet."""

from replay.report.model import Passed, Report
from tests.replay.report import sample

NAMES = (
    "<script>document.title='hacked'</script>",
    '"><img src=http://canary.invalid/x onerror=alert(1)>',
    "'><svg onload=alert(1)><style>*{display:none}</style>",
    "</style></title></main><iframe src=//canary.invalid>",
    "[bold red]markup[/] [link=http://canary.invalid]x[/link] [/nothing]",
    "\x1b[2J\x1b]0;title\x07\r\n\u202egnp.\x00",
    '=HYPERLINK("http://canary.invalid")',
    '@SUM(1+1),"quoted"',
    "\uff1d1+1",
    "&lt;amp;&#60;",
    "\udcff\ud800",
    "x" * 32_000,
)


def report() -> Report:
    """Make the report, with hostile names in tables, filters, problems, reasons and other text."""
    plain = sample.report()
    fetch, limits = plain["fetch"], plain["limits"]
    passed: dict[str, Passed] = {name: {"exchanges": 1, "bytes": 1} for name in NAMES}
    to_do = plain["decision"]["to_do"][0]
    return {
        **plain,
        "filters": {"ports": [], "hosts": list(NAMES), "clients": list(NAMES), "topics": list(NAMES)},
        "input": {
            **plain["input"],
            "problems": [{"file": name, "problem": name} for name in NAMES],
        },
        "decision": {
            **plain["decision"],
            "reason": NAMES[0],
            "to_do": [
                {**to_do, "client_id": name, "software": name, "fetch_version": 11, "sentence": name}
                for name in NAMES
            ],
        },
        "passed": passed,
        "by_client": [
            {
                "client_id": name,
                "software": name,
                "fetch_version": 11,
                "connections": 1,
                "connection_seconds": 1.0,
                "fetch": fetch,
                "passed": passed,
            }
            for name in NAMES
        ],
        "by_topic": [{"topic": name, "fetch": fetch} for name in NAMES],
        "both_sides": [
            {"client_side": name, "broker_side": name, "connections": 1, "fetch_bytes": 1} for name in NAMES
        ],
        "by_broker": [
            {
                "broker": name,
                "connections": 1,
                "fetch": {**fetch, "saved_bytes": 0, "saved_ratio": 0.0},
                "passed": {name: {"exchanges": 1, "bytes": 10**12}},
            }
            for name in NAMES
        ],
        "connections": [
            {
                "connection": name,
                "client": name,
                "broker": name,
                "client_id": name,
                "software": name,
                "fetch": fetch,
                "passed": passed,
            }
            for name in NAMES
        ],
        "readable": {**plain["readable"], "by_reason": dict.fromkeys(NAMES, 1)},
        "not_eligible": {name: {"exchanges": 1, "bytes": 1} for name in NAMES},
        "slots": [{**plain["slots"][0], "broker": name} for name in NAMES],
        "limits": {
            **limits,
            "by_client": [{**limits["by_client"][0], "client_id": name, "software": name} for name in NAMES],
            "longest": [
                {**limits["longest"][0], "client_id": name, "broker": name, "topic": name} for name in NAMES
            ],
        },
        "floors": {
            **sample.floors(),
            "by_client": [
                {**sample.floors()["by_client"][0], "client_id": name, "software": name} for name in NAMES
            ],
        },
        "zones": sample.zones(*NAMES),
    }
