"""The reference pages that are made from declarations."""

from typing import Final

from tools.pages import columns, metrics, options, report_fields
from tools.pages.markdown import ROOT

_REFERENCE: Final = ROOT / "docs" / "reference"
PAGES: Final = {
    _REFERENCE / "options.md": options.page,
    _REFERENCE / "metrics.md": metrics.page,
    _REFERENCE / "columns.md": columns.page,
    _REFERENCE / "report-fields.md": report_fields.page,
}
