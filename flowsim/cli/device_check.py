"""`flowsim device-check`: whether this machine's device computes what it should, how fast, with how much memory."""

from typing import TYPE_CHECKING, Annotated

from flowsim.cli._console import note, show, work, write, write_json
from flowsim.cli._options import OUTPUT, option

if TYPE_CHECKING:
    from flowsim.device_check import Checked

_PANEL = "Check"


def command(
    *,
    parity_only: Annotated[bool, option(_PANEL, "--parity-only", "Compare with the stored results, time nothing.")] = (
        False
    ),
    reference: Annotated[
        str | None, option(_PANEL, "--reference", "Other stored results than those that come with flowsim.", "FILE.npz")
    ] = None,
    write_reference: Annotated[
        str | None,
        option(_PANEL, "--write-reference", "Store this device's results there instead of comparing them.", "FILE.npz"),
    ] = None,
    json: Annotated[bool, option(OUTPUT, "--json", "Print one JSON object instead of tables.")] = False,
) -> int:
    """Compare what this machine's device computes with stored results, and time it.

    Example: flowsim device-check --json
    """
    if write_reference is not None:
        _store(write_reference)
        note(f"wrote {write_reference}")
        return 0
    found = work("checking", lambda: _check(reference, parity_only))
    if json:
        write_json(found.plain)
    else:
        _print(found)
    return 0 if found.ok else 1


def _store(path: str) -> None:
    from flowsim import device_check

    work("computing", lambda: device_check.write_reference(path, device_check.compute()))


def _check(reference: str | None, parity_only: bool) -> "Checked":
    from flowsim import device_check

    return device_check.check(reference, scale=None if parity_only else 1.0)


def _print(found: "Checked") -> None:
    from flowsim.cli._tables import new_table

    write(f"devices: {', '.join(found.devices)}")
    write()
    table = new_table()
    for heading in ("case", "observable"):
        table.add_column(heading)
    for heading in ("distance", "bound", ""):
        table.add_column(heading, justify="right")
    for row in found.parity:
        table.add_row(
            row.case, row.observable, f"{row.difference:.1e}", f"{row.bound:.1e}", "ok" if row.ok else "FAILS"
        )
    show(table)
    if found.speed:
        write()
        table = new_table()
        table.add_column("timing")
        for heading in ("first call, s", "later, s", "per second"):
            table.add_column(heading, justify="right")
        for speed in found.speed:
            table.add_row(speed.name, f"{speed.first:.2f}", f"{speed.seconds:.3f}", f"{speed.rate:,.0f} {speed.unit}")
        show(table)
    write()
    write(f"memory of the {found.memory['of']}, at most: {found.memory['peak_bytes'] / 2**20:,.0f} MiB")
    write("all results are within their bounds" if found.ok else "some results are NOT within their bounds")
