import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.testing import assert_close

from mha_course.attention_intuition import DigitFinder, cut_into_patches, glimpse, hide_digits, weighted_average

# The same examples in every run: what fails on one machine fails on all.
properties = settings(max_examples=20, deadline=None, derandomize=True)


def drawn(*shape, seed=1, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_a_weighted_average_worked_out_by_hand():
    # A weight of 3 in 4 and one of 1 in 4: 12 / 4 and 8 / 4.
    assert_close(
        weighted_average(torch.tensor([3.0, 1.0]), torch.tensor([[4.0, 0.0], [0.0, 8.0]])), torch.tensor([3.0, 2.0])
    )


@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
def test_each_weighted_average_is_that_of_numpy(leading):
    numpy = pytest.importorskip("numpy")
    weights, values = drawn(*leading, 5, dtype=torch.float64).abs(), drawn(*leading, 5, 7, seed=2, dtype=torch.float64)
    found = weighted_average(weights, values)
    assert found.shape == (*leading, 7)
    for index in numpy.ndindex(leading):
        right = numpy.average(values[index].numpy(), axis=0, weights=weights[index].numpy())
        assert_close(found[index], torch.from_numpy(right))


@properties
@given(seed=st.integers(0, 999), places=st.integers(1, 7), factor=st.sampled_from([1e-9, 0.5, 300.0]))
def test_a_weighted_average_lies_among_the_values_and_only_sees_proportions(seed, places, factor):
    weights, values = drawn(3, places, seed=seed).abs(), drawn(3, places, 5, seed=seed + 1)
    found = weighted_average(weights, values)
    assert (found <= values.amax(dim=1) + 1e-5).all()
    assert (found >= values.amin(dim=1) - 1e-5).all()
    assert_close(weighted_average(weights * factor, values), found, rtol=1e-4, atol=1e-5)


def test_without_any_weight_there_are_zeros_with_finite_gradients():
    weights = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    values = drawn(2, 3, 5).requires_grad_()
    found = weighted_average(weights, values)
    assert (found[1] == 0).all()
    found.sum().backward()
    assert weights.grad.isfinite().all()
    assert values.grad.isfinite().all()
    assert_close(values.grad[0], torch.tensor([1.0, 2.0, 0.0])[:, None].expand(3, 5) / 3)


def test_a_weighted_average_and_a_glimpse_pass_gradcheck():
    weights = (drawn(2, 3, dtype=torch.float64).abs() + 0.1).requires_grad_()
    values = drawn(2, 3, 5, seed=2, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(weighted_average, (weights, values))
    scores = drawn(2, 2, 3, dtype=torch.float64).requires_grad_()
    patches = drawn(2, 2, 3, 3, 2, seed=2, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(glimpse, (scores, patches))


def test_each_patch_is_what_the_window_shows_at_its_place():
    pictures = drawn(2, 13, 17)
    patches = cut_into_patches(pictures, size=5, step=3)
    assert patches.shape == (2, 3, 5, 5, 5)
    for row in range(3):
        for column in range(5):
            assert_close(
                patches[:, row, column], pictures[:, row * 3 : row * 3 + 5, column * 3 : column * 3 + 5], rtol=0, atol=0
            )


def test_places_start_at_the_upper_left_and_end_at_the_lower_right():
    picture = torch.arange(28.0 * 28).view(1, 28, 28)
    patches = cut_into_patches(picture)
    assert patches.shape == (1, 6, 6, 8, 8)
    assert patches[0, 0, 0, 0, 0] == 0
    assert patches[0, -1, -1, -1, -1] == 28 * 28 - 1


@pytest.mark.parametrize("shape", [(1, 7, 28), (1, 28, 7)])
def test_a_picture_smaller_than_a_patch_is_refused(shape):
    with pytest.raises(ValueError, match=r"a patch of 8 rows and columns does not fit a picture of (7 by 28|28 by 7)"):
        cut_into_patches(torch.zeros(shape))


def test_a_glimpse_is_the_sum_of_patches_times_the_softmax_of_all_scores_of_the_picture():
    scores, patches = drawn(2, 3, 5), drawn(2, 3, 5, 7, 2, seed=2)
    seen, weights = glimpse(scores, patches)
    for picture in range(2):
        raised = [[scores[picture, row, column].exp().item() for column in range(5)] for row in range(3)]
        total = sum(map(sum, raised))
        right = torch.zeros(7, 2)
        for row in range(3):
            for column in range(5):
                assert weights[picture, row, column].item() == pytest.approx(raised[row][column] / total, rel=1e-4)
                right += raised[row][column] / total * patches[picture, row, column]
        assert_close(seen[picture], right)


def test_a_glimpse_is_soft_attention_with_places_for_keys():
    # PyTorch's own attention with the scores handed in as a bias: the queries and keys are zeros.
    scores, patches = drawn(2, 3, 5), drawn(2, 3, 5, 7, 11, seed=2)
    seen, _ = glimpse(scores, patches)
    nothing = torch.zeros(2, 15, 1)
    attended = F.scaled_dot_product_attention(
        torch.zeros(2, 1, 1), nothing, patches.flatten(1, 2).flatten(2), attn_mask=scores.flatten(1)[:, None]
    )
    assert_close(seen, attended.view(2, 7, 11))


def test_a_glimpse_does_not_copy_patches_that_overlap_wrongly():
    pictures = drawn(3, 28, 28)
    scores = torch.full((3, 6, 6), -200.0)
    scores[:, 2, 5] = 200.0  # all weight on one place
    seen, _ = glimpse(scores, cut_into_patches(pictures))
    assert_close(seen, pictures[:, 8:16, 20:28])


def test_scores_of_any_size_give_finite_weights():
    scores = torch.tensor([[[500.0, 499.0]], [[-500.0, -501.0]]])
    _, weights = glimpse(scores, torch.ones(2, 1, 2, 3, 3))
    assert_close(weights, torch.tensor([0.7310586, 0.2689414]).expand(2, 1, 2))  # 1 / (1 + 1/e)


def test_a_digit_lies_where_it_is_said_to_lie():
    digits = torch.rand(7, 8, 8, generator=torch.Generator().manual_seed(1))
    pictures, chosen, places = hide_digits(digits, count=50, seed=3)
    for picture, which, (row, column) in zip(pictures, chosen, places.tolist(), strict=True):
        assert_close(picture[row * 4 : row * 4 + 8, column * 4 : column * 4 + 8], digits[which])
    assert set(places.flatten().tolist()) == set(range(6))
    assert set(chosen.tolist()) == set(range(7))


def test_with_a_step_of_one_pixel_a_digit_may_lie_anywhere_and_the_scraps_stay_where_they_were():
    digits = torch.rand(7, 8, 8, generator=torch.Generator().manual_seed(1))
    pictures, chosen, corners = hide_digits(digits, count=200, seed=3, step=1)
    for picture, which, (row, column) in zip(pictures, chosen, corners.tolist(), strict=True):
        assert_close(picture[row : row + 8, column : column + 8], digits[which])
    assert set(corners.flatten().tolist()) == set(range(21))
    others, same, places = hide_digits(digits, count=200, seed=3)
    assert torch.equal(chosen, same)
    for first, second, one, four in zip(pictures, others, corners.tolist(), (4 * places).tolist(), strict=True):
        outside = torch.ones(28, 28, dtype=torch.bool)
        for row, column in (one, four):
            outside[row : row + 8, column : column + 8] = False
        assert torch.equal(first[outside], second[outside])


def test_what_else_lies_in_a_picture_is_made_of_scraps_of_the_digits():
    # In each digit every pixel has one and the same number, so that a scrap tells from which digit it is.
    digits = torch.arange(1.0, 6.0).view(5, 1, 1).expand(5, 8, 8) / 5
    pictures, _, places = hide_digits(digits, count=30, seed=3)
    for picture, (row, column) in zip(pictures, places.tolist(), strict=True):
        picture[row * 4 : row * 4 + 8, column * 4 : column * 4 + 8] = 0
    assert set((pictures * 5).round().int().unique().tolist()) == {0, 1, 2, 3, 4, 5}
    ink = (pictures > 0).sum(dim=(1, 2))
    assert (ink <= 12 * 16).all()  # at most twelve scraps of 4 by 4
    assert ink.float().mean() > 6 * 16
    reached = (pictures > 0).any(dim=0)
    assert reached[0].any()
    assert reached[-1].any()
    assert reached[:, 0].any()
    assert reached[:, -1].any()


def test_a_scrap_may_come_from_anywhere_in_a_digit():
    numbered = torch.arange(1.0, 65.0).view(1, 8, 8)
    pictures, _, places = hide_digits(numbered, count=40, seed=3)
    for picture, (row, column) in zip(pictures, places.tolist(), strict=True):
        picture[row * 4 : row * 4 + 8, column * 4 : column * 4 + 8] = 0
    assert set(pictures.unique().tolist()) == set(range(65))


def test_the_same_seed_makes_the_same_pictures_and_another_one_others():
    digits = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(1))
    before = digits.clone()
    first, again, other = (hide_digits(digits, count=5, seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(digits, before)


def test_the_finder_reads_nothing_but_the_glimpse():
    torch.manual_seed(1)
    finder = DigitFinder(hidden=11)
    pictures = torch.rand(3, 28, 28)
    seen, weights = finder.look(pictures)
    assert finder.score[0].out_features == finder.score[2].in_features == 11
    assert seen.shape == (3, 8, 8)
    assert weights.shape == (3, 6, 6)
    assert_close(weights.sum(dim=(1, 2)), torch.ones(3))
    assert_close(finder(pictures), finder.read(seen.reshape(3, 64)))


def test_the_finder_scores_a_patch_alike_wherever_it_lies():
    torch.manual_seed(1)
    finder = DigitFinder()
    pictures = torch.zeros(2, 28, 28)
    pictures[0, 0:8, 4:12] = pictures[1, 12:20, 16:24] = torch.rand(8, 8)
    _, weights = finder.look(pictures)
    assert_close(weights[0, 0, 1], weights[1, 3, 4], rtol=0.05, atol=0.0)  # at the edge fewer patches overlap it
    assert weights[0, 0, 1] != weights[0, 5, 5]


def test_what_the_finder_learned_with_one_step_can_be_used_with_another():
    torch.manual_seed(1)
    finder, closer = DigitFinder(step=4), DigitFinder(step=1)
    closer.load_state_dict(finder.state_dict())
    pictures = torch.rand(3, 28, 28)
    seen, weights = closer.look(pictures)
    assert weights.shape == (3, 21, 21)
    at_four = weights[:, ::4, ::4]
    assert_close(at_four / at_four.sum(dim=(1, 2), keepdim=True), finder.look(pictures)[1])
    assert_close(seen[0, 2, 3], (weights[0] * pictures[0, 2:23, 3:24]).sum())


def test_the_finder_learns_where_to_look_from_the_digits_names_alone():
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn, which brings the digits, is not installed")
    data = datasets.load_digits()
    digits, names = torch.tensor(data.images / 16, dtype=torch.float32), torch.tensor(data.target)
    pictures, chosen, _ = hide_digits(digits[:1200], count=2000, seed=0)
    new, new_chosen, places = hide_digits(digits[1200:], count=300, seed=1)
    torch.manual_seed(0)
    finder = DigitFinder()
    optimizer = torch.optim.Adam(finder.parameters(), lr=0.01)
    for _ in range(150):
        batch = torch.randint(len(pictures), (64,))
        optimizer.zero_grad()
        F.cross_entropy(finder(pictures[batch]), names[:1200][chosen][batch]).backward()
        optimizer.step()
    with torch.no_grad():
        said, weights = finder(new).argmax(dim=1), finder.look(new)[1]
    assert weights[torch.arange(300), places[:, 0], places[:, 1]].mean() > 0.9
    assert (said == names[1200:][new_chosen]).float().mean() > 0.8


def test_nothing_changes_its_input():
    weights, values, pictures = drawn(2, 3).abs(), drawn(2, 3, 5), drawn(2, 28, 28)
    scores = drawn(2, 6, 6)
    before = [x.clone() for x in (weights, values, pictures, scores)]
    weighted_average(weights, values)
    glimpse(scores, cut_into_patches(pictures))
    DigitFinder()(pictures)
    assert all(map(torch.equal, before, (weights, values, pictures, scores)))
