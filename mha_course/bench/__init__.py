"""A race of attentions: time and peak memory of this course's three ways to compute it, and of other libraries'."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch

from mha_course.bench.contestants import CONTESTANTS, EXPLICIT, PYTORCHS, Layer, Shape, drawn, layer_of, left_out
from mha_course.bench.decoding import WAYS, Decoding, writer
from mha_course.bench.memory import Meter, can_be_measured
from mha_course.bench.passes import PASSES, TOLERANCE, differences, prepared, runner
from mha_course.bench.report import Report, Row, Section, growth, lengths_text, machine, section_text
from mha_course.bench.timing import interleaved, ratio, spread
from mha_course.surroundings import require_device

PARTS = ("attention", "decoding", "lengths")
SHAPES = (Shape(8, 128, 512, 8), Shape(32, 128, 768, 12), Shape(8, 2048, 512, 8))
DECODINGS = tuple(Decoding(batch, tokens=256, d_model=256, num_heads=8, num_layers=4) for batch in (1, 8))
DECODING_REPEATS = 3  # a turn takes many seconds
LENGTHS = (1024, 2048, 4096, 8192)
GROWING = (EXPLICIT, "fast", PYTORCHS)


@dataclass(frozen=True)
class Plan:
    """What is to be measured, and how."""

    names: tuple[str, ...]
    parts: tuple[str, ...]
    shapes: tuple[Shape, ...]
    lengths: tuple[int, ...]
    decodings: tuple[Decoding, ...]
    repeats: int
    threads: int
    device: str

    @property
    def steps(self) -> int:
        """How often the progress moves at most."""
        races = len(self.shapes) * len(PASSES) * (self.repeats + len(self.names)) * ("attention" in self.parts)
        written = len(self.decodings) * (min(self.repeats, DECODING_REPEATS) + len(WAYS)) * ("decoding" in self.parts)
        return races + written + len(self.lengths) * len(self.growing) * ("lengths" in self.parts)

    @property
    def growing(self) -> tuple[str, ...]:
        """Whose memory is measured by length."""
        return tuple(name for name in self.names if name in GROWING)


def plan(
    *,
    only: Sequence[str] | None = None,
    parts: Sequence[str] | None = None,
    shapes: Sequence[str] | None = None,
    lengths: Sequence[int] | None = None,
    repeats: int | None = None,
    threads: int | None = None,
    device: str = "cpu",
    quick: bool = False,
) -> Plan:
    """Fill in what was not asked for.

    Args:
        only: names of contestants; None: all.
        parts: some of `PARTS`; None: all.
        shapes: each "batch,length,width,heads"; None: three that are common.
        lengths: at which memory is measured; None: up to 8192.
        repeats: turns; None: 20.
        threads: of the CPU; None: as many as PyTorch takes.
        device: "cpu", "cuda" or "mps".
        quick: small sizes and few turns where nothing else is asked for.

    Raises:
        ValueError: if something asked for does not exist.
    """
    most = 4 * (os.cpu_count() or 1)
    if threads is not None and threads > most:
        raise ValueError(f"{threads} threads are too many for this machine; at most {most} make sense")
    require_device(device, "measure")
    for name in only or ():
        if name not in CONTESTANTS:
            near = difflib.get_close_matches(name, CONTESTANTS, n=1)
            guess = f"did you mean {near[0]}?" if near else f"choose from {', '.join(CONTESTANTS)}"
            raise ValueError(f"no contestant is called {name!r}; {guess}")
    small = Shape(2, 32, 64, 4)
    return Plan(
        names=tuple(name for name in CONTESTANTS if only is None or name in only),
        parts=tuple(parts or PARTS),
        shapes=tuple(map(_shape, shapes)) if shapes else (small,) if quick else SHAPES,
        lengths=tuple(sorted(set(lengths))) if lengths else (512, 1024) if quick else LENGTHS,
        decodings=(Decoding(2, tokens=16, d_model=64, num_heads=4, num_layers=2),) if quick else DECODINGS,
        repeats=repeats or (3 if quick else 20),
        threads=threads or torch.get_num_threads(),
        device=device,
    )


def bench(
    plan: Plan,
    progress: Callable[[str], None] = lambda _what: None,
    show: Callable[[str], None] = lambda _text: None,
) -> Report:
    """Measure what is planned.

    Args:
        plan: from `plan`.
        progress: called before each step with what is done next.
        show: called with the report's heading, and with each table as soon as it is measured.
    """
    memory = "measured" if can_be_measured(plan.device) else "not known on this system and device"
    report = Report(machine(plan.device, plan.threads, memory), left_out(plan.names))
    threads_before = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    try:
        with Meter(plan.device, plan.threads) as meter:
            headed = False
            for part, measure in (("attention", _attention), ("decoding", _decoding), ("lengths", _lengths)):
                for table in measure(plan, report, meter, progress) if part in plan.parts else ():
                    if not headed:  # not before: by now it is known which contestants can't be imported
                        show(report.heading())
                        headed = True
                    show(table)
    finally:
        torch.set_num_threads(threads_before)
    return report


def _attention(plan: Plan, report: Report, meter: Meter, progress: Callable[[str], None]) -> Iterator[str]:
    for shape in plan.shapes:
        attention, x = drawn(shape, plan.device)
        layers: dict[str, Layer] = {}
        for name in plan.names:
            if name not in report.left_out:
                try:
                    layers[name] = layer_of(name, attention)
                except ImportError as error:
                    report.left_out[name] = str(error)
        different = differences(layers, layer_of(EXPLICIT, attention), x)
        agreeing = {name: layer for name, layer in layers.items() if different[name] <= TOLERANCE}
        for way, one in PASSES.items():
            what = f"{shape}: {one.title}"
            seconds, calls = interleaved(
                {name: runner(layer, x, way) for name, layer in agreeing.items()},
                plan.repeats,
                wait=_wait(plan.device),
                after_turn=partial(progress, what),
            )
            report.attention.append(
                Section(
                    title=what,
                    settings={**asdict(shape), "pass": way},
                    repeats=plan.repeats,
                    calls=calls,
                    bases={name: CONTESTANTS[name].title for name in (EXPLICIT, PYTORCHS) if name in seconds},
                    rows={},
                    differences=different,
                    refused=[name for name in layers if name not in agreeing],
                )
            )
            for name in agreeing:
                progress(f"{what}, memory of {name}")
                peak = meter.measure(partial(prepared, name, shape, way, plan.device))
                _add_row(report.attention[-1], name, CONTESTANTS[name].title, seconds, peak)
            yield section_text(report.attention[-1])


def _decoding(plan: Plan, report: Report, meter: Meter, progress: Callable[[str], None]) -> Iterator[str]:
    for decoding in plan.decodings:
        writers = {way: writer(decoding, way, plan.device) for way in WAYS}
        texts = {way: write() for way, write in writers.items()}
        different = {way: (text != texts["recomputed"]).float().mean().item() for way, text in texts.items()}
        refused = [way for way, part in different.items() if part > 0]
        repeats = min(plan.repeats, DECODING_REPEATS)
        seconds, calls = interleaved(
            {way: write for way, write in writers.items() if way not in refused},
            repeats,
            warm_up=1,
            wait=_wait(plan.device),
            after_turn=partial(progress, f"writing: {decoding}"),
        )
        section = Section(
            title=f"Writing, {decoding}",
            settings=asdict(decoding),
            repeats=repeats,
            calls=calls,
            bases={"recomputed": WAYS["recomputed"]},
            rows={},
            differences=different,
            refused=refused,
        )
        for way in seconds:
            progress(f"writing, memory {WAYS[way]}")
            peak = meter.measure(partial(writer, decoding, way, plan.device))
            _add_row(section, way, WAYS[way], seconds, peak)
        report.decoding.append(section)
        yield section_text(section)


def _lengths(plan: Plan, report: Report, meter: Meter, progress: Callable[[str], None]) -> Iterator[str]:
    width = plan.shapes[0]
    for name in plan.growing:
        peaks = {}
        for length in plan.lengths:
            progress(f"memory of {name} at length {length}")
            shape = Shape(1, length, width.d_model, width.num_heads)
            peaks[length] = meter.measure(partial(prepared, name, shape, "forward", plan.device))
        settings = {"batch": 1, "d_model": width.d_model, "num_heads": width.num_heads}
        report.lengths[name] = growth(CONTESTANTS[name].title, settings, peaks)
    if report.lengths:
        yield lengths_text(report.lengths)


def _add_row(section: Section, name: str, title: str, seconds: dict[str, list[float]], peak: int | None) -> None:
    ratios = {base: ratio(seconds[name], seconds[base]) for base in section.bases}
    section.rows[name] = Row(title, seconds[name], spread(seconds[name]).median, ratios, peak)


def _wait(device: str) -> Callable[[], None]:
    """Return what waits until an accelerator, which works while Python goes on, has done all."""
    return {"cpu": lambda: None, "cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}[device]


def _shape(text: str) -> Shape:
    numbers = text.split(",")
    if len(numbers) != 4 or not all(number.strip().isdecimal() and int(number) > 0 for number in numbers):
        raise ValueError(
            f"a shape is four whole numbers above 0, batch,length,width,heads, but it is {text!r}; try 8,128,512,8"
        )
    shape = Shape(*map(int, numbers))
    if shape.d_model % shape.num_heads:
        raise ValueError(
            f"the heads must divide the width, but {shape.num_heads} do not divide {shape.d_model}; "
            f"change the last two numbers of {text}"
        )
    return shape
