import io
import os
import signal
import sys
import threading

import nbformat
import pytest
from nbclient import NotebookClient

from mha_course.surroundings import display, stop_signal


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(monkeypatch, stream, progress, steps=53, done=0):
    monkeypatch.setattr(sys, "stderr", stream)
    with display(steps, done, progress) as show:
        for now in range(done + 1, steps + 1):
            show(now, 1 / now, {"accuracy": 0.5 + now / 1000} if now % 20 == 0 else {})
    return stream.getvalue()


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_told_to_be_silent_it_is(monkeypatch, stream):
    assert shown(monkeypatch, stream(), progress=False) == ""


def test_a_log_gets_ten_whole_lines_with_what_was_measured_last(monkeypatch):
    lines = shown(monkeypatch, io.StringIO(), progress=None).splitlines()
    assert len(lines) == 10
    assert lines[0] == "step 6 of 53: loss 0.1667"
    assert lines[-1] == "step 53 of 53: loss 0.01887, accuracy 0.54"


def test_a_run_shorter_than_ten_steps_gets_a_line_each(monkeypatch):
    assert len(shown(monkeypatch, io.StringIO(), progress=None, steps=3).splitlines()) == 3


@pytest.mark.parametrize(("stream", "progress"), [(Terminal, None), (Terminal, True), (io.StringIO, True)])
def test_a_terminal_gets_a_bar_on_one_line_with_loss_metrics_and_time_left(monkeypatch, stream, progress):
    last = shown(monkeypatch, stream(), progress).rstrip("\n")
    assert "\n" not in last
    last = last.split("\r")[-1]
    assert "53/53" in last
    assert "loss=0.0189, accuracy=0.54" in last
    assert "<00:00" in last


def test_a_resumed_run_goes_on_where_it_was(monkeypatch):
    assert "50/53" in shown(monkeypatch, Terminal(), None, done=50).split("\r")[1]


def test_a_notebook_gets_a_bar_that_is_a_widget():
    source = (
        "from mha_course.surroundings import display\n"
        "with display(3, 0, None) as show:\n"
        "    for now in (1, 2, 3):\n"
        "        show(now, 0.5, {})\n"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    NotebookClient(notebook, kernel_name="python3").execute()
    (output,) = notebook.cells[0].outputs
    assert "application/vnd.jupyter.widget-view+json" in output.data


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_for_an_end_and_handlers_are_put_back(number):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with stop_signal() as asked:
        assert not asked.is_set()
        os.kill(os.getpid(), number)
        assert asked.is_set()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_second_ctrl_c_stops_at_once():
    with stop_signal():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_in_another_thread_nothing_is_caught():
    seen = []

    def run():
        with stop_signal() as asked:
            seen.append((asked.is_set(), signal.getsignal(signal.SIGINT)))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [(False, before)]
