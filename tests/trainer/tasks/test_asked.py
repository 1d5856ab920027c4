"""Test the answers of the shipped tasks when they are served: alone, in a batch, and to invalid pictures."""

import base64
import io

import pytest
import torch
from PIL import Image

from trainer.checkpoint.models import load_model
from trainer.loop.settings import Settings
from trainer.loop.trainer import Trainer
from trainer.serving import Rejected
from trainer.tasks import gpt, resnet
from trainer.tasks.classifier_service import classifier_service
from trainer.tasks.images import KINDS, ImageOptions, open_images, served_inputs
from trainer.tasks.text_service import bits_per_byte, continued
from trainer.tasks.transformer import Shape, Transformer

CPU = torch.device("cpu")
SHAPE = ["--layers", "1", "--width", "16", "--heads", "2", "--context", "16"]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    return Transformer(Shape(context=16, layers=1, heads=2, width=16)).eval()


@torch.inference_mode()
def test_a_text_is_judged_alike_in_any_batch(model):
    rows = [[*b"import os"], [*b"a"], [*b"def main():"]]
    together = bits_per_byte(model, rows, CPU)
    assert together == pytest.approx([bits_per_byte(model, [row], CPU)[0] for row in rows], abs=1e-5)
    assert together[1] is None
    logits = model(torch.tensor([rows[0][:-1]]))[0].log_softmax(dim=1) / torch.log(torch.tensor(2.0))
    own = -logits[torch.arange(8), torch.tensor(rows[0][1:])].mean()
    assert together[0] == pytest.approx(float(own), abs=1e-5)


@torch.inference_mode()
def test_a_text_goes_on_with_the_likeliest_bytes_beyond_what_the_model_sees_at_once(model):
    rows, counts = [[*b"import os, sys"], [*b"x"], [*b"yes"]], [6, 20, 0]
    found = continued(model, rows, counts, 16, CPU)
    assert [len(one) for one in found] == counts
    for row, count, more in zip(rows, counts, found, strict=True):
        text = list(row)
        for _ in range(count):
            text.append(int(model(torch.tensor([text[-16:]]))[0, -1].argmax()))
        assert text[len(row) :] == more


def test_a_trained_text_model_is_loaded_and_asked(tmp_path):
    settings = Settings(max_steps=2, checkpoint_dir=tmp_path / "checkpoints", strategy="none", out=tmp_path / "metrics")
    shape = Shape(context=16, layers=1, heads=2, width=16)
    data = torch.utils.data.TensorDataset(torch.randint(0, 256, (64, 17)))

    def loss(model, batch):
        return gpt.loss(model, batch[0])

    Trainer(settings, model=lambda: Transformer(shape), loss=loss, data=data,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1)).fit()  # fmt: skip
    service = gpt.service([*SHAPE, "--max-steps", "2"])
    ours = service.load(tmp_path / "checkpoints")
    theirs = Transformer(shape)
    assert load_model(theirs, tmp_path / "checkpoints") == 2
    assert all(torch.equal(one, other) for one, other in zip(ours.parameters(), theirs.parameters(), strict=True))
    with torch.inference_mode():
        (answer,) = service.predict(ours, [{"text": "é", "bytes": 3}])
    assert set(answer) == set(service.output["required"])


def test_a_generated_image_is_classified_as_in_the_validation():
    args = ["--model", "shufflenet_v2_x0_5", "--pixels", "16"]
    service = resnet.service(args)
    images = open_images(ImageOptions(pixels=16, validation_images=3, train_images=4096, seed=1))
    torch.manual_seed(1)
    model = resnet.build_classifier("shufflenet_v2_x0_5", classes=10, pixels=16).eval()
    batch = [images.validation[index] for index in range(3)]
    with torch.inference_mode():
        answers = service.predict(model, [{"pixels": image.tolist()} for image, _ in batch])
        expected = model(torch.stack([image for image, _ in batch])).softmax(dim=1).max(dim=1)
    assert [one["label"] for one in answers] == [images.classes[index] for index in expected.indices.tolist()]
    assert [one["probability"] for one in answers] == pytest.approx(expected.values.tolist(), abs=1e-5)
    assert [len(one["likeliest"]) for one in answers] == [5] * 3
    assert service.input["properties"]["pixels"]["maxItems"] == 3


def picture(kind, size, mode="RGB"):
    file = io.BytesIO()
    Image.new(mode, size).save(file, kind)
    return base64.b64encode(file.getvalue()).decode()


@pytest.fixture
def folder(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "train" / name).mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "generated"])
def test_a_picture_of_any_size_is_taken(kind, folder):
    seen = served_inputs(ImageOptions(kind, root=folder))
    service = classifier_service("resnet18", seen)
    model = torch.nn.Sequential(
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, len(seen.classes))
    )
    pictures = [picture("PNG", (50, 20)), picture("JPEG", (300, 400)), picture("PNG", (20, 20), "L")]
    answers = service.predict(model, [{"image": one} for one in pictures])
    assert {one["label"] for one in answers} <= set(seen.classes)
    assert [len(one["likeliest"]) for one in answers] == [min(5, len(seen.classes))] * 3


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("not base64!", "expected base64"),
        (base64.b64encode(b"GIF89a" + bytes(50)).decode(), "expected a PNG or JPEG file"),
        (picture("GIF", (8, 8)), "expected a PNG or JPEG file"),
        (picture("PNG", (8, 8))[:60], "expected a PNG or JPEG file"),
        (picture("PNG", (9000, 9000), "1"), "expected at most 67108864 pixels"),
    ],
)
def test_what_is_no_picture_is_refused_by_its_field(text, why, folder):
    service = classifier_service("resnet18", served_inputs(ImageOptions("image_folder", root=folder)))
    with pytest.raises(Rejected) as told:
        service.predict(torch.nn.Linear(1, 1), [{"image": text}])
    assert told.value.field == "image"
    assert told.value.why.startswith(why)
