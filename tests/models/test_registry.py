import pytest

from ddu.errors import DDUError, InputError
from ddu.models import MLP, ResNet, WideResNet, create_model, list_models
from ddu.models.wide_resnet import PreActivationBlock


def test_list_models_is_sorted_and_complete():
    assert list_models() == [
        "densenet121",
        "fc_net4_128",
        "lenet",
        "resffn4_128",
        "resnet110",
        "resnet18",
        "resnet50",
        "vgg16",
        "wide_resnet28_10",
        "wide_resnet50_2",
    ]


def test_list_models_filters_with_wildcards():
    assert list_models("*resnet50*") == ["resnet50", "wide_resnet50_2"]
    assert list_models("transformer*") == []


def test_families_answer_to_every_size():
    small = create_model("wide_resnet10_2", width=0.5)
    assert isinstance(small, WideResNet)
    assert small.num_features == 64
    blocks = [module for module in small.modules() if isinstance(module, PreActivationBlock)]
    assert len(blocks) == 3
    tall = create_model("resffn7_12", in_features=3)
    assert isinstance(tall, MLP)
    assert (tall.num_features, len(tall.blocks)) == (12, 7)


def test_exact_name_comes_before_the_family_that_it_resembles():
    assert isinstance(create_model("wide_resnet50_2", width=0.0625), ResNet)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "wideresnet",
            "There is no model 'wideresnet'. The closest names are 'wide_resnet50_2', 'wide_resnet28_10', 'resnet50'; "
            "list_models() gives them all.",
        ),
        (
            "WRN-28-10",
            "There is no model 'WRN-28-10'. The closest names are 'wide_resnet28_10', 'resnet110'; "
            "list_models() gives them all.",
        ),
        ("xyz", "There is no model 'xyz'. list_models() gives them all."),
        ("", "There is no model ''. list_models() gives them all."),
    ],
)
def test_unknown_name_answers_with_the_closest_ones(name: str, message: str):
    with pytest.raises(InputError) as caught:
        create_model(name)
    assert str(caught.value) == message
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, DDUError)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wide_resnet29_10", "The depth of a wide ResNet is 6n + 4. Got 29; the nearest are 28 and 34."),
        ("wide_resnet8_1", "The depth of a wide ResNet is 6n + 4. Got 8; the smallest is 10."),
    ],
)
def test_impossible_depth_of_a_wide_resnet_names_the_nearest(name: str, message: str):
    with pytest.raises(InputError) as caught:
        create_model(name)
    assert str(caught.value) == message
