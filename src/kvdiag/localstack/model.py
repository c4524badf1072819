"""Models small enough for one core, whose output depends on every token of the prompt.

`python -m kvdiag.localstack.model SIZE DIRECTORY` writes one. vLLM's `--load-format dummy` is no substitute: its
output does not depend on the prompt, so a test for corrupted KV could never fail.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

from kvdiag.errors import MissingStackError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

RECIPE: Final = 2
"""Goes up when the recipe below changes, so that a cached model of an older recipe is not taken."""

SEED: Final = 20261012
VOCABULARY: Final = 512
CONTEXT: Final = 32768
_SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHAT_TEMPLATE: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


Size = Literal["tiny", "small"]
SIZES: Final[dict[Size, dict[str, int]]] = {
    "tiny": {
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
    # 7.3 million parameters, 2 KiB of KV a token: 20,000 tokens take seconds to compute and a fraction of one to move.
    "small": {
        "num_hidden_layers": 2,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 64,
    },
}
"""Qwen3 configuration values that set how much a prefill costs, and how much there is to move."""


def ensure_model(directory: Path, size: Size = "tiny") -> Path:
    """Return the folder of the model below `directory`, building it on first use."""
    target = directory / f"{size}-{RECIPE}"
    if (target / "model.safetensors").exists():
        return target
    done = subprocess.run(
        [sys.executable, "-m", "kvdiag.localstack.model", size, target], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return target
    reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
    if "ModuleNotFoundError" in reason:
        raise MissingStackError
    raise UnavailableError(f"the {size} model could not be built in {target}: {reason}")


def _build(size: Size, target: Path) -> None:
    """Write weights, tokenizer and chat template; the folder appears only when it is whole."""
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    _write_tokenizer(partial)
    _write_weights(partial, SIZES[size])
    partial.rename(target)


def _corpus() -> Iterator[str]:
    """Yield text to train the tokenizer on: an agent's words and numbers, enough for short merges."""
    for number in range(500):
        yield f"step {number}: read the file, edit the line, run the test, report the result"
        yield f"def answer_{number}(self, value: int) -> str: return self.lines[value + {number}].strip()"
        yield f"the error at line {number} was mended; what should be changed next, and why did the test fail?"


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: PLC0415 - the cpu extra

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "eos_token": _SPECIAL[0],
        "pad_token": _SPECIAL[0],
        "chat_template": _CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def _write_weights(folder: Path, size: dict[str, int]) -> None:
    import torch  # noqa: PLC0415 - the cpu extra
    from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: PLC0415

    torch.manual_seed(SEED)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        eos_token_id=0,
        bos_token_id=0,
        pad_token_id=0,
        **size,
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            _randomise(name, weights)
    model.save_pretrained(folder)


def _randomise(name: str, weights: torch.nn.Parameter) -> None:
    """Draw weights large enough that attention looks at content, not only at position."""
    if "norm" in name:
        return
    spread = 1.0 if "embed_tokens" in name else 0.3 if "lm_head" in name else 0.08
    weights.normal_(0.0, spread)


if __name__ == "__main__":
    _build(cast("Size", sys.argv[1]), Path(sys.argv[2]))
