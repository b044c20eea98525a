"""What was measured: as tables of at most 100 columns, and as JSON."""

from __future__ import annotations

import json
import math
import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from mha_course.bench.timing import Spread

MIB = 2**20


@dataclass
class Row:
    """One contestant's seconds a call, turn by turn; ratios to others, by name; extra peak memory of a call."""

    title: str
    seconds: list[float]
    median_seconds: float
    ratios: dict[str, Spread]
    peak_bytes: int | None


@dataclass
class Section:
    """One race. `differences` are of results, as a part of the largest one; who is in `refused` was not timed."""

    title: str
    settings: dict[str, int | str]
    repeats: int
    calls: int
    bases: dict[str, str]
    rows: dict[str, Row]
    differences: dict[str, float]
    refused: list[str]


@dataclass
class Growth:
    """Extra peak memory by length, and the power of the length that it grows with between the two longest."""

    title: str
    settings: dict[str, int]
    peak_bytes: dict[int, int | None]
    exponent: float | None


@dataclass
class Report:
    """All that was measured, and on what."""

    machine: dict[str, str | int]
    left_out: dict[str, str]
    attention: list[Section] = field(default_factory=list)
    decoding: list[Section] = field(default_factory=list)
    lengths: dict[str, Growth] = field(default_factory=dict)

    def as_json(self) -> str:
        """Write out every field of this class and those in it, under its own name; None becomes null."""
        return json.dumps(asdict(self), indent=2)

    def heading(self) -> str:
        """Say what the numbers hold for, and what is missing."""
        machine = self.machine
        lines = [
            f"{machine['processor']}, {machine['system']}",
            f"device {machine['device']}, threads {machine['threads']}, Python {machine['python']}, "
            f"torch {machine['torch']}, transformers {machine['transformers']}, Keras {machine['keras']}",
        ]
        lines += [f"Left out: {name} ({why})." for name, why in self.left_out.items()]
        if machine["memory"] != "measured":
            lines.append(f"Peak memory: {machine['memory']}.")
        return "\n".join(lines)


def machine(device: str, threads: int, memory: str) -> dict[str, str | int]:
    """Describe what the numbers hold for."""
    found: dict[str, str | int] = {
        "processor": _processor(),
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
    }
    found |= {"device": torch.cuda.get_device_name() if device == "cuda" else device}
    found |= {"memory": memory, "python": platform.python_version()}
    for package in ("torch", "transformers", "keras"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def growth(title: str, settings: dict[str, int], peaks: dict[int, int | None]) -> Growth:
    """Find the power of the length that memory grows with.

    >>> growth("squares", {}, {3: 9, 4: 16, 8: 64}).exponent
    2.0
    """
    known = [(length, peak) for length, peak in sorted(peaks.items()) if peak]
    exponent = None
    if len(known) > 1:
        (shorter, less), (longer, more) = known[-2:]
        exponent = math.log(more / less) / math.log(longer / shorter)
    return Growth(title, settings, peaks, exponent)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def section_text(section: Section) -> str:
    """Lay out one table."""
    heads = "".join(f"  {f'/ {title}':<24}" for title in section.bases.values())
    turns = f"{section.repeats} turns of {section.calls} call{'s' * (section.calls > 1)}"
    lines = [section.title, f"{turns}; {_agreement(section)}", f"{'':<26}{'median ms':>11}{heads}{'peak MiB':>11}"]
    for row in section.rows.values():
        cells = "".join(f"  {_spread(row.ratios.get(base)):<24}" for base in section.bases)
        lines.append(f"{row.title:<26}{row.median_seconds * 1000:>11.3f}{cells}{_mib(row.peak_bytes):>11}")
    return "\n".join(lines)


def _agreement(section: Section) -> str:
    if section.refused:
        wrong = ", ".join(f"{name} ({section.differences[name]:.1g})" for name in section.refused)
        return f"DISAGREE and are not timed (largest difference): {wrong}"
    return f"all results agree within {max(section.differences.values(), default=0.0):.1g} of the largest"


def lengths_text(lengths: dict[str, Growth]) -> str:
    """Lay out the table of memory by length."""
    some = next(iter(lengths.values()))
    settings = ", ".join(f"{name} {number}" for name, number in some.settings.items())
    lines = [f"Peak memory by length, in MiB: forward, eval mode, no gradients, {settings}"]
    lines += [f"{'':<26}" + "".join(f"{length:>11}" for length in some.peak_bytes) + "   grows as length to the"]
    for one in lengths.values():
        power = "" if one.exponent is None else f"   {one.exponent:.2f}"
        lines.append(f"{one.title:<26}" + "".join(f"{_mib(peak):>11}" for peak in one.peak_bytes.values()) + power)
    return "\n".join(lines)


def _spread(value: Spread | None) -> str:
    if value is None:
        return "-"
    low, middle, high = (
        f"{number:.2f}" if number < 100 else f"{number:.0f}"
        for number in (value.first_quartile, value.median, value.third_quartile)
    )
    return f"{middle} ({low} to {high})"


def _mib(peak: int | None) -> str:
    return "-" if peak is None else f"{peak / MIB:.1f}"
