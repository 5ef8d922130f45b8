"""The work of the command `settings`: a setting as a row and as JSON."""

from rich.table import Table

from streamer.settings.listing import ListedSetting, shown_value
from streamer.terminal import safe


def setting_document(setting: ListedSetting) -> dict[str, object]:
    """A setting for a program."""
    return {
        "setting": setting.full_name, "value": setting.value, "default": setting.default, "from": setting.origin,
        "variable": setting.variable, "description": setting.description,
    }  # fmt: skip


def settings_table(listed: tuple[ListedSetting, ...]) -> Table:
    """A line for each setting; the values that somebody has set are bold, with their defaults beside them."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("setting", no_wrap=True)
    for column in ("value", "from", "default"):
        table.add_column(column, overflow="fold")
    for each in listed:
        cells = (each.full_name, safe(shown_value(each.value)), safe(each.origin))
        if each.is_set:
            table.add_row(*cells, shown_value(each.default), style="bold")
        else:
            table.add_row(*cells)
    return table
