"""Test that the page's code works as it is shown, with a small Hugging Face model."""

import os
import re
import time
import warnings
from pathlib import Path

import pytest
import torch
from ranks import Ranks

PAGE = Path(__file__).parents[3] / "trainer" / "weights" / "README.md"
_, IN_FOUR_LINES, EXAMPLE = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)

LIMIT_S = 270.0  # each rank imports transformers


def run_example(folder):
    os.chdir(folder)
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")  # those of others' packages
    from transformers import AutoModelForCausalLM, GPT2Config

    if os.environ["RANK"] == "0":
        config = GPT2Config(
            vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
        )
        AutoModelForCausalLM.from_config(config).save_pretrained("draft")
        os.mkdir("short")
        os.symlink("../pretrained", "short/pretrained")
        os.rename("draft", "pretrained")
    while not os.path.exists("pretrained"):
        time.sleep(0.05)
    texts = [{"input_ids": torch.arange(8) + i % 3, "labels": torch.arange(8) + i % 3} for i in range(32)]
    said = []
    names = {"texts": texts, "prompt": torch.tensor([[1, 2]]), "print": said.append}
    exec(EXAMPLE, names)
    tuned = AutoModelForCausalLM.from_pretrained("tuned").state_dict()
    first = AutoModelForCausalLM.from_pretrained("pretrained").state_dict()
    changed = not torch.equal(tuned["transformer.wte.weight"], first["transformer.wte.weight"])
    os.chdir("short")  # where there is no checkpoint to go on from
    exec(IN_FOUR_LINES, names)
    trained = names["model"].state_dict()["transformer.wte.weight"]
    changed &= not torch.equal(trained, first["transformer.wte.weight"])
    return [one.shape for one in said], changed, tuned.keys() == first.keys(), sorted(os.listdir("../tuned"))


@pytest.mark.nightly
@pytest.mark.timeout(LIMIT_S + 30)
def test_a_model_of_hugging_face_is_tuned_and_generates(tmp_path):
    ranks = Ranks(run_example, 2, tmp_path, stay=True)
    shapes, changed, complete, files = ranks.results(limit_s=LIMIT_S)[0]
    assert ([tuple(shape) for shape in shapes], changed, complete) == ([(1, 10), (1, 10)], True, True)
    assert files == ["config.json", "generation_config.json", "model.safetensors"]
