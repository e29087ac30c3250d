"""Every estimator agrees with its literal reference, whatever the batch."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from . import literal
from .batches import advantages, assert_close, batches

seeds = st.integers(0, 1000).map(Random)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo"])
@given(batch=batches(), shuffle=seeds)
def test_outcome_estimators(name, batch, shuffle):
    reference = getattr(literal, name)
    assert_close(advantages(name, batch, shuffle=shuffle), [row for group in batch for row in reference(group)])


@given(
    batch=batches(),
    shuffle=seeds,
    gamma=st.sampled_from([1.0, 0.99, 0.5]),
    prior=st.sampled_from(["return_to_go", "discounted"]),
    prior_strength=st.sampled_from([0.0, 2.0, 7.5]),
    leave_one_out=st.booleans(),
    normalize=st.booleans(),
    skip_zero_variance=st.booleans(),
)
def test_rtmc(batch, shuffle, **parameters):
    expected = [row for group in batch for row in literal.rtmc(group, **parameters)]
    assert_close(advantages("rtmc", batch, shuffle=shuffle, **parameters), expected)


@given(batch=batches("binary"), shuffle=seeds, leave_one_out=st.booleans())
def test_rtmc_as_published(batch, shuffle, leave_one_out):
    parameters = {"prior": "success_rate", "leave_one_out": leave_one_out}
    expected = [row for group in batch for row in literal.rtmc(group, **parameters)]
    assert_close(advantages("rtmc", batch, shuffle=shuffle, **parameters), expected)
