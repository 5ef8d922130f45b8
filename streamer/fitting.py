"""Tables for people that fit their terminal: columns are left out and texts are cut, so that no id
and no word is broken. Pure.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.table import Table

from consumers.runtime.visible import visible

GAP: Final = 2
"""Blanks between two columns."""
LEAST_TEXT: Final = 10
"""Characters to which a text may be cut: enough to tell one agent from another."""
NEEDED: Final = 3
"""Columns that leave at this or later are worth more than the ends of texts."""


class FittedColumn(NamedTuple):
    """A column of a table.

    Attributes:
        head: What stands above it.
        cells: Its texts, a line each.
        leaves: Where there is no room, the column with the highest is left out first: those above
            `NEEDED` before a text is cut, the others after it. 0 stays.
        is_cut: Whether its texts may be cut. An id may not.
        is_number: Whether its cells end at the right.
    """

    head: str
    cells: Sequence[str]
    leaves: int = 0
    is_cut: bool = False
    is_number: bool = False

    @property
    def chars(self) -> int:
        """How wide it is."""
        return max(map(cell_len, (self.head, *self.cells)))

    @property
    def least_chars(self) -> int:
        """How wide it is at least."""
        return min(self.chars, max(cell_len(self.head), LEAST_TEXT)) if self.is_cut else self.chars

    def cut_to(self, chars: int) -> "FittedColumn":
        """The column with texts of so many characters at most."""
        return self._replace(
            cells=[
                each if cell_len(each) <= chars else f"{set_cell_size(each, chars - 1)}\u2026"
                for each in self.cells
            ]
        )


def fitted(columns: Iterable[FittedColumn], width: int) -> Table:
    """The table of these columns in so many characters. Only an id that is longer than a line is
    continued on the next.
    """
    shown = [each._replace(cells=[visible(cell) for cell in each.cells]) for each in columns]
    while True:
        leaving = max(shown, key=lambda each: each.leaves)
        is_needed = leaving.leaves <= NEEDED
        chars = sum((each.least_chars if is_needed else each.chars) + GAP for each in shown) - GAP
        if chars <= width or not leaving.leaves:
            break
        shown.remove(leaving)
    while (excess := sum(each.chars + GAP for each in shown) - GAP - width) > 0:
        at, longest = max(enumerate(shown), key=lambda each: each[1].chars - each[1].least_chars)
        if longest.chars == longest.least_chars:
            break
        shown[at] = longest.cut_to(max(longest.least_chars, longest.chars - excess))
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for each in shown:
        table.add_column(
            each.head,
            justify="right" if each.is_number else "left",
            no_wrap=excess <= 0,
            overflow="fold",
        )
    for cells in zip(*(each.cells for each in shown), strict=True):
        table.add_row(*cells)
    return table
