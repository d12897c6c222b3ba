"""Rank measures against closed forms (paper equations 1–3)."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rankprobe import spectra


@pytest.mark.parametrize(
    ("rank", "energy"), [(1, 1.000), (2, 1.649), (3, 2.623), (4, 3.571), (6, 5.448), (8, 7.317)]
)
def test_energy_rank_of_the_papers_teacher(rank, energy):
    values = [2.0] if rank == 1 else [2 - i / (rank - 1) for i in range(rank)]
    assert spectra.energy_rank(values) == pytest.approx(energy, abs=5e-4)


def test_flat_spectra_have_their_rank_in_every_measure():
    for measure in (spectra.effective_rank, spectra.energy_rank, spectra.stable_rank):
        assert measure([0.3] * 7 + [0.0] * 5) == pytest.approx(7.0)


def test_two_values_by_hand():
    # p = (4/5, 1/5) for the energy, (2/3, 1/3) for the values.
    entropy = -(0.8 * math.log(0.8) + 0.2 * math.log(0.2))
    assert spectra.energy_rank([2.0, 1.0]) == pytest.approx(math.exp(entropy))
    assert spectra.stable_rank([2.0, 1.0]) == pytest.approx(1.25)
    assert spectra.effective_rank([2.0, 1.0]) == pytest.approx(3 / 2 ** (2 / 3))


def test_a_noise_bulk_inflates_the_effective_rank_far_more_than_the_energy_rank():
    # One value of 2 over 31 of .008: p = 2/2.248, q = .008/2.248 for the values; the energies differ by 250².
    p, q = 2 / 2.248, 0.008 / 2.248
    expected = math.exp(-(p * math.log(p) + 31 * q * math.log(q)))
    assert (
        spectra.effective_rank([2.0] + [0.008] * 31)
        == pytest.approx(expected)
        == pytest.approx(2.067, abs=1e-3)
    )
    assert spectra.energy_rank([2.0] + [0.008] * 31) == pytest.approx(1.0, abs=0.01)


spectrum = arrays(np.float64, st.integers(1, 12), elements=st.floats(1e-6, 1e6))


@given(spectrum)
def test_order_of_the_measures(values):
    stable, energy = spectra.stable_rank(values), spectra.energy_rank(values)
    effective = spectra.effective_rank(values)
    slack = 1 + 1e-9
    assert stable * slack >= 1
    assert stable <= energy * slack <= effective * slack**2
    assert effective <= len(values) * slack


@given(spectrum, st.floats(1e-100, 1e100))
def test_measures_ignore_units(values, unit):
    for measure in (spectra.effective_rank, spectra.energy_rank, spectra.stable_rank):
        assert measure(values * unit) == pytest.approx(measure(values), rel=1e-9)


def test_zero_spectrum_has_rank_zero():
    assert spectra.energy_rank([0.0, 0.0]) == spectra.stable_rank([]) == spectra.effective_rank([0.0]) == 0.0
    assert spectra.numerical_rank([0.0], 0.01) == 0
    assert spectra.numerical_rank([1.0, 0.02, 0.005], 0.01) == 2
