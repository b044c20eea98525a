"""How an answer is judged, on small exercises made for the purpose."""

from functools import partial

import pytest
import torch
from torch import nn

from mha_course.exercises.exercise import Call, Case, Exercise, Misconception, Part, Unavailable, given
from mha_course.grader.judging import judge
from mha_course.grader.worker import run_case


def exercise(reference, *cases, kind="function", misconceptions=(), **more):
    return Exercise(
        name="wanted",
        chapter="multi_head",
        kind=kind,
        minutes=1,
        parts=(Part("core", 1, "do what it should", "multi_head#the-layer"),),
        hints=("one", "two", "three"),
        cases=lambda rng: cases,
        reference=reference,
        misconceptions=misconceptions,
        **more,
    )


def verdict(exercise, answer):
    return judge(exercise, partial(run_case, answer, is_learners=lambda filename: "test_judging" in filename), seed=0)


def case(*args, **more):
    return Case("core", "this input", (Call(args),), **more)


def five():
    return 5


@pytest.mark.parametrize("answer", [lambda: 5, lambda: 5.0, lambda: torch.tensor(5), lambda: torch.tensor(5.0 + 1e-6)])
def test_a_number_may_be_of_any_type_that_holds_one(answer):
    assert verdict(exercise(five, case()), answer).verdict == "passed"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda: 6, "the number should be 5, but is 6"),
        (lambda: True, "The result is a number"),
        (lambda: "5", "The result is a number"),
        (lambda: torch.tensor([5.0]), "your code returned a tensor of shape (1,)"),
        (lambda: None, "None (is there a return?)"),
        (lambda: float("nan"), "the number should be 5, but is nan"),
    ],
)
def test_another_number_or_none_at_all_is_told(answer, told):
    found = verdict(exercise(five, case()), answer)
    assert found.verdict == "failed"
    assert told in found.message


def test_a_list_may_be_a_tuple_and_its_first_wrong_entry_is_shown():
    wanted = exercise(lambda: [2, 3, 5], case())
    assert verdict(wanted, lambda: (2, 3, 5)).verdict == "passed"
    assert "in entry 1 of the list, the number should be 3, but is 7" in verdict(wanted, lambda: [2, 7, 5]).message
    assert "the list should have 3 entries, but has 2" in verdict(wanted, lambda: [2, 3]).message


def test_infinities_and_truth_values_are_compared_one_by_one():
    filtered = exercise(lambda: torch.tensor([1.0, -torch.inf, 2.0]), case())
    found = verdict(filtered, lambda: torch.tensor([1.0, 2.0, 2.0]))
    assert "1 of 3 numbers are wrong; the first, at [1], is 2 and should be -inf" in found.message
    mask = exercise(lambda: torch.tensor([True, False]), case())
    found = verdict(mask, lambda: torch.tensor([True, True]))
    assert "1 of 2 entries are wrong; the first, at [1], is True and should be False" in found.message
    loss = exercise(lambda: torch.tensor(2.0), case())
    assert "the result is 3 and should be 2" in verdict(loss, lambda: torch.tensor(3.0)).message


def increment(x):
    return step(x, 1)


def step(x, size):
    return x + size


class Counter:
    def __init__(self, start):
        self.count = start

    def __call__(self):
        self.count += 1
        return self.count


def test_a_function_of_ours_is_given_with_what_it_uses_and_learner_code_gets_it_as_an_object():
    twice = exercise(lambda function, x: function(function(x)), case(given(increment, step), 3))
    assert verdict(twice, lambda function, x: function(function(x))).verdict == "passed"
    assert verdict(twice, lambda function, x: function(x)).verdict == "failed"


def test_equal_objects_of_ours_are_one_within_a_case_and_new_in_the_next():
    counter = given(Counter, args=(10,))
    both = Case("core", "called twice", (Call((counter,)), Call((counter,))))
    other = case(given(Counter, args=(10,), tag="another"))
    counts = exercise(lambda counter: counter(), both, both, other)
    outputs = []

    def answer(counter):
        outputs.append(counter())
        return outputs[-1]

    assert verdict(counts, answer).verdict == "passed"
    assert outputs == [11, 12, 11, 12, 11]


def all_called(functions):
    return lambda x: [function(x) for function in functions(2)]


def test_what_is_no_plain_value_is_called_through_an_adapter():
    def reference(number):
        return [lambda x, i=i: x + i for i in range(number)]

    def late(number):
        return [lambda x: x + i for i in range(number)]  # noqa: B023 (the slip itself)

    wanted = exercise(reference, case(torch.zeros(3), through=given(all_called)))
    assert verdict(wanted, reference).verdict == "passed"
    assert "in entry 0 of the list" in verdict(wanted, late).message


def right_sum(numbers):
    return sum(numbers)


def wrong_sum(numbers):
    return sum(numbers[1:])


def examination(**more):
    cases = (
        case(given(right_sum), accepts=True),
        case(given(wrong_sum), accepts=False),
    )

    def reference(implementation):
        assert implementation([2, 3]) == 5

    return exercise(reference, *cases, task="catch", **more)


def test_a_test_that_a_learner_wrote_is_judged_by_what_it_lets_pass():
    def tells_apart(implementation):
        if implementation([2, 3]) != 5:
            raise ValueError("wrong sum")

    def lets_all_pass(implementation):
        implementation([2, 3])

    def refuses_all(implementation):
        assert implementation([2, 3]) == 6, "six is right"

    def only_returns(implementation):
        return implementation([2, 3]) == 5

    assert verdict(examination(), tells_apart).verdict == "passed"
    assert "your test let it pass, though it is wrong." in verdict(examination(), lets_all_pass).message
    refused = verdict(examination(), refuses_all).message
    assert "your test refused it, though it is right: it raised AssertionError: six is right" in refused
    assert 'assert implementation([2, 3]) == 6, "six is right"' in refused
    assert "it returned False; a test says no by raising" in verdict(examination(), only_returns).message


def test_weak_tests_are_told_apart_from_those_that_only_return():
    def only_returns(implementation):
        return implementation([2, 3]) == 5

    def tries_nothing(implementation):
        assert True

    known = (
        Misconception("returned", "It returns.", "multi_head#the-layer", (only_returns,)),
        Misconception("untried", "It tries nothing.", "multi_head#the-layer", (tries_nothing,)),
    )
    assert verdict(examination(misconceptions=known), lambda f: f([2, 3]) == 5).misconception == "returned"
    assert verdict(examination(misconceptions=known), lambda f: None).misconception == "untried"


class Inner(nn.Identity):
    pass


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
        self.seen = []

    def forward(self, x):
        self.seen.append(x)
        self.inner.last = x
        return x


def test_what_an_instance_remembers_is_said_but_costs_nothing():
    layer = Case("core", "a tensor", (Call((torch.zeros(2),)),), build=Call(()))
    found = verdict(exercise(nn.Identity, layer, kind="class"), Remembering)
    assert found.verdict == "passed"
    assert "remembers something from one call to the next (self.seen, self.inner.last)" in found.message
    meant = exercise(nn.Identity, layer, kind="class", keeps_state=True)
    assert "remembers" not in verdict(meant, Remembering).message
    assert "remembers" not in verdict(meant, nn.Identity).message


def test_what_a_function_remembers_in_its_default_is_said():
    def collecting(x, seen=[]):  # noqa: B006 (the slip itself)
        seen.append(x)
        return x

    found = verdict(exercise(lambda x: x, case(torch.ones(2))), collecting)
    assert found.verdict == "passed"
    assert "(the default of seen)" in found.message


def test_a_module_takes_the_number_type_of_its_parameters():
    state = {"weight": torch.ones(3, 2).half(), "bias": torch.zeros(3).half()}
    layer = Case("core", "half precision", (Call((torch.ones(1, 2).half(),)),), build=Call((2, 3)), state=state)
    linear = exercise(nn.Linear, layer, kind="class")
    assert verdict(linear, nn.Linear).verdict == "passed"


def test_what_was_handed_out_to_be_repaired_is_named_for_the_instructor_and_not_for_the_learner():
    def slip(x):
        return x + 1

    known = (Misconception("off_by_one", "It is one too large.", "multi_head#the-layer", (slip,)),)
    for task, told in (("repair", False), ("write", True)):
        found = verdict(exercise(lambda x: x, case(torch.ones(2)), misconceptions=known, task=task), slip)
        assert found.misconception == "off_by_one"
        assert ("It is one too large." in found.message) is told


def test_of_a_result_in_parts_the_whole_is_shown_where_a_part_is_of_the_wrong_kind():
    pair = exercise(lambda: (torch.zeros(2), torch.ones(3)), case())
    told = verdict(pair, lambda: (torch.zeros(2), None)).message
    assert "a tuple of 2: (a tensor of shape (2,), a tensor of shape (3,))." in told
    assert "your code returned a tuple of 2: (a tensor of shape (2,), None)." in told


def test_evidence_names_the_part_of_the_result_and_the_call():
    pair = exercise(lambda: (torch.zeros(2), torch.ones(3)), case(), results=("output", "weights"))
    assert (
        "in the weights, 3 of 3 numbers are NaN"
        in verdict(pair, lambda: (torch.zeros(2), torch.ones(3) * torch.nan)).message
    )
    assert "in the output, the shape should be (2,)" in verdict(pair, lambda: (torch.zeros(1), torch.ones(3))).message
    twice = exercise(lambda x: x, Case("core", "two calls", (Call((torch.zeros(2),)), Call((torch.ones(2),)))))
    assert "On two calls: in call 2 of 2, 2 of 2 numbers are wrong" in verdict(twice, lambda x: x * 0).message


def test_an_error_in_a_helper_is_told_with_the_line_that_called_it():
    def helper(x):
        return x.nothing

    def answer(x):
        return helper(x)

    told = verdict(exercise(lambda x: x, case(torch.zeros(2))), answer).message
    first, second = (function.__code__.co_firstlineno + 1 for function in (helper, answer))
    assert f"line {first}, which " in told
    assert f"line {second}, came to: return x.nothing)" in told


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: nn.Linear(2, 3, bias=False), "there is no parts.0.bias (bias=False?)"),
        (nn.Flatten, "'Flatten' object has no attribute 'bias'"),
    ],
)
def test_parts_that_are_missing_or_out_of_sight_are_named(make, told):
    def with_parts(kind):
        class Layer(nn.Module):
            def __init__(self):
                super().__init__()
                self.parts = kind([make()])

            def forward(self, x):
                return x

        return Layer

    layer = Case("core", "a layer", (Call((torch.ones(2),)),), build=Call(()), state={"parts.0.bias": torch.ones(3)})
    assert told in run_case(with_parts(nn.ModuleList), layer.message(), lambda name: False)["error"]["message"]
    hidden = run_case(with_parts(list), layer.message(), lambda name: False)["error"]["message"]
    assert hidden == "parts.0.bias is out of PyTorch's sight, inside a plain list"


def test_a_missing_gradient_is_told_with_the_mode():
    class Detached(nn.Linear):
        def forward(self, x):
            return super().forward(x.detach() if not self.training else x)

    calls = (Call((torch.ones(1, 2),), backward=True),)
    layer = Case("core", "a layer", calls, build=Call((2, 3)), state={"weight": torch.ones(3, 2)})
    assert (
        "the gradient of input is missing in evaluation mode"
        in verdict(exercise(nn.Linear, layer, kind="class"), Detached).message
    )


def test_a_test_that_is_itself_broken_is_not_taken_for_one_that_is_too_strict():
    def too_strict(implementation):
        assert implementation([2, 3]) == 6

    known = (Misconception("too_strict", "Six.", "multi_head#the-layer", (too_strict,)),)

    def broken(implementation):
        return implementation(2, 3)

    assert verdict(examination(misconceptions=known), too_strict).misconception == "too_strict"
    found = verdict(examination(misconceptions=known), broken)
    assert found.misconception is None
    assert "it raised TypeError" in found.message


def test_a_slip_beside_another_is_named_if_it_shows_in_most_cases_and_in_the_one_that_is_shown():
    def plus_one(x):
        return x + 1

    def plus_one_and_odd(x):
        return x + 1 if len(x) < 7 else x * 3

    def odd_in_the_smallest(x):
        return x + 1 if len(x) > 2 else x * 3

    def raises(x):
        raise ValueError("x")

    def raises_in_the_small(x):
        return raises(x) if len(x) < 5 else x * 3

    known = (
        Misconception("plus_one", "One too large.", "multi_head#the-layer", (plus_one,)),
        Misconception("raises", "It raises.", "multi_head#the-layer", (raises,)),
    )
    cases = [Case("core", f"{n} numbers", (Call((torch.ones(n),)),)) for n in (2, 3, 5, 7)]
    wanted = exercise(lambda x: x, *cases, misconceptions=known)
    assert verdict(wanted, plus_one_and_odd).misconception == "plus_one"
    assert verdict(wanted, odd_in_the_smallest).misconception is None
    assert verdict(wanted, raises).misconception == "raises"
    assert verdict(wanted, raises_in_the_small).misconception is None


def test_an_error_is_not_put_down_to_a_slip_that_goes_wrong_nearly_everywhere_else():
    def raises(x):
        raise ValueError("x")

    def raises_once(x):
        return raises(x) if len(x) == 3 else x

    known = (Misconception("raises", "It raises.", "multi_head#the-layer", (raises,)),)
    cases = [Case("core", f"{n} numbers", (Call((torch.ones(n),)),)) for n in (2, 3, 5, 7)]
    wanted = exercise(lambda x: x, *cases, misconceptions=known)
    assert verdict(wanted, raises_once).misconception is None
    assert verdict(wanted, raises).misconception == "raises"


def test_two_numbers_that_look_alike_are_shown_with_more_digits():
    wanted = exercise(lambda: torch.tensor(0.5, dtype=torch.float64), case(tolerance=1e-9))
    found = verdict(wanted, lambda: torch.tensor(0.500000125, dtype=torch.float64))
    assert "the result is 0.500000125 and should be 0.5" in found.message


def test_what_the_answer_does_at_work_is_said_after_a_pass_and_a_failure_but_not_where_it_raised():
    def aftermath(run):
        output = run(case(torch.ones(2)).message())["results"][0]["output"]
        return f"At work it gives {output.tolist()}."

    wanted = exercise(lambda x: x, case(torch.zeros(2)), case(torch.ones(2)), aftermath=aftermath)
    assert "At work it gives [1.0, 1.0]." in verdict(wanted, lambda x: x).message
    assert "At work it gives [2.0, 2.0]." in verdict(wanted, lambda x: x + x).message

    def raises(x):
        return x.nothing

    assert "At work" not in verdict(wanted, raises).message


def test_an_exercise_that_lacks_something_gives_no_mark():
    def cases(rng):
        raise Unavailable("The weights are missing; install them with make lab.")

    missing = exercise(five)
    object.__setattr__(missing, "cases", cases)
    found = verdict(missing, five)
    assert (found.verdict, found.points) == ("not_gradable", None)
    assert found.message == "The weights are missing; install them with make lab."
