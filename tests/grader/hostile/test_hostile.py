"""Every submission of the catalogue is reported for what it is, and the one after it is graded as if nothing had been."""

import json
import re
import runpy
import socket
from pathlib import Path

import pytest

import mha_course
from mha_course.grader import isolation
from mha_course.grader.gradebook import grade

_WRITTEN = runpy.run_path(str(Path(__file__).with_name("catalogue.py")))
CATALOGUE, RIGHT = _WRITTEN["CATALOGUE"], _WRITTEN["RIGHT"]
SECONDS = 4


def hand_in(folder, hostile, port):
    path = folder / f"{hostile.name}{hostile.suffix}"
    if hostile.link:
        path.symlink_to(hostile.link.replace("FOLDER", str(folder)))
    elif isinstance(hostile.source, bytes):
        path.write_bytes(hostile.source)
    elif isinstance(hostile.source, tuple):
        cells = [{"cell_type": "code", "source": source, "metadata": {}} for source in hostile.source]
        path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    else:
        package = str(Path(mha_course.__file__).parent)
        source = hostile.source.replace("FOLDER", str(folder)).replace("PACKAGE", package).replace("PORT", str(port))
        path.write_text(source)
    (folder / f"{hostile.name}_next.py").write_text(RIGHT)


def stragglers():
    names = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            names.append(path.read_text())
        except OSError:
            continue
    return [name for name in names if "mha-straggler" in name]


@pytest.mark.parametrize("way", ["bubblewrap", "unshare", "process"])
def test_each_is_reported_for_what_it_is_and_the_next_is_graded_right(way, tmp_path, monkeypatch):
    chosen = [found for found in isolation.ways() if found[0] == way]
    if not chosen:
        pytest.skip(f"this machine has no {way}")
    monkeypatch.setattr("mha_course.grader.sandbox.ways", lambda: chosen)
    # What does not end takes its whole time: once is enough where the way makes no difference.
    catalogue = [h for h in CATALOGUE if way == "bubblewrap" or h.verdict != "timed_out" or h.name == "never_ends"]
    folder = tmp_path / "submissions"
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        for hostile in catalogue:
            hand_in(folder, hostile, server.getsockname()[1])
        summary = grade(
            folder, tmp_path / "results", seconds=SECONDS, only=["split_heads"], jobs=1, report=lambda _: None
        )
    wrong = {}
    for hostile in catalogue:
        expected = (way == "process" and hostile.unprotected) or hostile.verdict
        entry = summary.records[hostile.name]["exercises"]["split_heads"]
        if entry["verdict"] not in expected.split("|") or not re.search(hostile.says, entry["message"]):
            wrong[hostile.name] = (expected, hostile.says, entry["verdict"], entry["message"][-300:])
        after = summary.records[f"{hostile.name}_next"]["exercises"]["split_heads"]
        if after["verdict"] != "passed":
            wrong[f"after {hostile.name}"] = ("passed", "", after["verdict"], after["message"][-300:])
    assert not wrong, "\n".join(f"{name}: {found}" for name, found in wrong.items())
    assert stragglers() == []
    if way != "process":
        assert list(folder.glob("mha-course-filler-*")) == []
