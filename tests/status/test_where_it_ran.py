"""Test the advice about a rank that failed, from its message."""

import pytest

from launcher.run.records import Failure
from launcher.states import Cause
from launcher.status.where_it_ran import way_to_have


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("ModuleNotFoundError: No module named 'torch'", "python -m pip install torch where it is a package"),
        ("ModuleNotFoundError: No module named 'sklearn.svm'", "python -m pip install scikit-learn"),
        ("python: No module named package.trian", "python -m pip install package where it is a package; a module of"),
        ("ModuleNotFoundError: No module named 'trainer'", "trainer comes with launch, and the ranks' Python has it"),
    ],
)
def test_a_module_that_is_missed_is_told_with_how_to_have_it(said: str, told: str) -> None:
    failure = Failure(Cause.USER_ERROR, "rank 0 on node 0 ended with exit code 1", 1, 1, tail=("Traceback", said))
    [hint] = way_to_have(failure, "python")
    assert hint.startswith("hint: ") and told in hint


def test_any_other_error_has_no_such_hint() -> None:
    assert way_to_have(Failure(Cause.USER_ERROR, "KeyError: 'lr'", 1, 1), "python") == []
