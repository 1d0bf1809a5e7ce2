"""Loaders from YAML files and mappings."""

import inspect
import sys

import pytest

import penstock
from penstock import config
from penstock.core.plan import Plan
from penstock.errors import SettingError, StorageError
from penstock.options import CacheOptions, EngineOptions, ErrorOptions, ReadOptions
from penstock.plan.document import save_plan
from penstock.plan.fingerprint import fingerprint
from penstock.testing import REID, make_shards
from penstock.watcher.machine.facts import machine_facts
from tests.support.loader_helpers import keys_of

SAMPLES = 12
FIELDS = {
    "image": penstock.Image(".jpg", size=(16, 8), fit="crop"),
    "id": penstock.Label(".json", key="identity"),
}
PLAIN = {"fields": {"id": {"type": "label", "suffix": ".json", "key": "identity"}}, "batch_size": 4}
YAML = """
shards: {shards}
fields:
  image: {{type: image, suffix: .jpg, size: [16, 8], fit: crop}}
  id: {{type: label, suffix: .json, key: identity}}
batch_size: 4
shuffle: true
seed: 5
engine: {{executor: thread}}
reading: {{block_bytes: 4096}}
"""
FUNCTIONS = """
def only_keys(batch):
    return batch["__key__"]

def doubled(sample, rng):
    return {**sample, "id": 2 * sample["id"]}

def some(sample):
    return sample.key[-1] in "02468"

def drawn(batch, rng):
    return rng.random()
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return [str(path) for path in make_shards(tmp_path_factory.mktemp("reid"), REID, samples=SAMPLES, scale=0.05)]


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "train.yaml"
        path.write_text(text)
        return path

    return write


def arguments(**settings):
    """Return the arguments with which the config would call Loader."""
    return config.build(_keep, {"shards": "x.tar", **PLAIN, **settings})


def _keep(**arguments):
    return arguments


_keep.__signature__ = inspect.signature(penstock.Loader)
_keep.__init__ = penstock.Loader.__init__


def refusal(source):
    with pytest.raises(SettingError) as caught:
        penstock.Loader.from_config(source)
    return str(caught.value)


# -- what is in a file -----------------------------------------------------------------------------------------


def test_a_file_makes_the_same_loader_as_the_same_arguments(make_loader, shards, write):
    read = penstock.Loader.from_config(write(YAML.format(shards=shards[0])))
    written = make_loader(shards, FIELDS, 4, shuffle=True, seed=5)
    assert [(b["__key__"], b["image"].tolist(), b["id"].tolist()) for b in read] == [
        (b["__key__"], b["image"].tolist(), b["id"].tolist()) for b in written
    ]
    read.close()


def test_a_mapping_is_accepted_and_not_changed(shards):
    source = {**PLAIN, "shards": shards, "num_workers": 0}
    before = repr(source)
    loader = penstock.Loader.from_config(source)
    assert len(keys_of(loader)) == SAMPLES
    assert repr(source) == before
    loader.close()


def test_option_groups_are_nested_mappings():
    groups = {
        "reading": {"num_readers": 3},
        "cache": "/fast",
        "errors": {"on_error": "skip", "max_bad_fraction": 0.5},
        "engine": {"memory_bytes": 1 << 30, "timeout_s": 5},
    }
    made = arguments(**groups)
    assert made["reading"] == ReadOptions(num_readers=3)
    assert made["cache"] == CacheOptions("/fast")
    assert made["errors"] == ErrorOptions("skip", max_bad_fraction=0.5)
    assert made["engine"] == EngineOptions(memory_bytes=1 << 30, timeout_s=5.0)
    assert not {"reading", "cache", "errors", "engine"} & arguments(engine=None, cache=None, reading={}).keys()


@pytest.mark.parametrize("shards", ["a.tar", ["a.tar", "b.tar"], {"a.tar": 3, "b.tar": 0.5}])
def test_shards_are_a_string_a_list_or_a_mixture(shards):
    assert arguments(shards=shards)["shards"] == shards


def test_every_type_of_field_can_be_declared(tmp_path):
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    declared = {
        "image": {"type": "image", "size": 8, "suffix": [".jpg", ".png"], "dtype": "float32"},
        "mask": {"type": "mask", "suffix": "_mask.png", "like": "image", "dtype": "int64", "fill": 0},
        "boxes": {"type": "boxes", "suffix": ".json", "key": "boxes", "like": "image", "format": "xywh", "labels": "l"},
        "geometry": {"type": "geometry", "like": "image"},
        "label": {"type": "label", "suffix": ".cls", "classes": str(tmp_path / "classes.txt")},
        "array": {"type": "array", "suffix": ".npy", "shape": [2, 3]},
        "json": {"type": "json", "suffix": ".json", "optional": True, "fill": {"a": [1]}},
        "text": {"type": "text", "suffix": ".txt"},
        "raw": {"type": "raw", "suffix": ".bin"},
    }
    assert arguments(fields=declared)["fields"] == {
        "image": penstock.Image((".jpg", ".png"), size=8, dtype="float32"),
        "mask": penstock.Mask("_mask.png", like="image", dtype="int64", fill=0),
        "boxes": penstock.Boxes(".json", key="boxes", like="image", format="xywh", labels="l"),
        "geometry": penstock.Geometry(like="image"),
        "label": penstock.Label(".cls", classes=["cat", "dog"]),
        "array": penstock.Array(".npy", shape=(2, 3)),
        "json": penstock.Json(".json", optional=True, fill={"a": [1]}),
        "text": penstock.Text(".txt"),
        "raw": penstock.Raw(".bin"),
    }
    assert set(config.FIELD_TYPES) == set(declared)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({"crop": {}, "flip": 0.5}, {"crop": penstock.RandomResizedCrop(), "flip": 0.5}),
        ({"crop": {"scale": [0.2, 1]}}, {"crop": penstock.RandomResizedCrop(scale=(0.2, 1.0))}),
        ({"crop": "center", "resize": 10}, {"crop": "center", "resize": 10}),
        ({"crop": None}, {}),
        ({"gpu_transform": {"mean": [0.5, 0.5, 0.5]}}, {"gpu_transform": penstock.GpuTransform(mean=(0.5, 0.5, 0.5))}),
    ],
)
def test_the_crop_and_the_gpu_transform_of_an_image_are_nested_mappings(declared, expected):
    fields = arguments(fields={"image": {"type": "image", "size": 8, **declared}})["fields"]
    assert fields == {"image": penstock.Image(size=8, **expected)}


def test_whole_numbers_and_others_stay_what_they_are():
    label = {"type": "label", "suffix": ".cls", "optional": True}
    fields = {"a": {**label, "fill": -1}, "b": {**label, "fill": 0.5, "dtype": "float32"}, "c": label}
    assert [each.fill for each in arguments(fields=fields)["fields"].values()] == [-1, 0.5, None]


def test_functions_are_named_by_module_and_function(shards, tmp_path, monkeypatch):
    (tmp_path / "penstock_test_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    named = {"transform": "penstock_test_functions:doubled", "batch_transform": "penstock_test_functions:only_keys"}
    settings = {"engine": {"executor": "process"}, "num_workers": 1}
    loader = penstock.Loader.from_config({**PLAIN, **named, **settings, "shards": shards})
    assert [len(keys) for keys in loader] == [4, 4, 4]
    loader.close()
    named = {"filter": "penstock_test_functions:some", "batch_transform": "penstock_test_functions:drawn"}
    loader = penstock.Loader.from_config({**PLAIN, **named, "num_workers": 0, "shards": shards})
    assert len({draw for draw in loader if 0 <= draw < 1}) == 2
    loader.close()
    del sys.modules["penstock_test_functions"]


def test_outputs_of_a_transform_are_lists_of_shape_and_dtype():
    assert arguments(outputs={"a": [[3, 8, 8], "float32"], "b": "ragged"})["outputs"] == {
        "a": ([3, 8, 8], "float32"),
        "b": "ragged",
    }


def test_a_function_may_be_null():
    assert arguments(transform=None)["transform"] is None


def test_every_argument_of_a_loader_can_be_set_except_the_objects():
    names = set(inspect.signature(penstock.Loader).parameters)
    plain_names = names - {"shards", "fields", "filter", "transform", "batch_transform"} - set(config.GROUPS)
    hints = inspect.get_annotations(penstock.Loader.__init__)
    plain = {
        name for name in plain_names if not any(word in hints[name] for word in ("Callable", "Sampler", "Iterable"))
    }
    assert plain_names - plain == names & config.CODE_ONLY


# -- settings of torch's DataLoader ----------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [{}, {"engine": {"executor": "auto"}}, {"engine": {"executor": "thread"}}], ids=str)
def test_no_workers_are_one_thread_of_this_process(shards, engine):
    loader = penstock.Loader.from_config({**PLAIN, "shards": shards, "num_workers": 0, **engine})
    assert len(keys_of(loader)) == SAMPLES
    assert "1 workers (thread)" in repr(loader)
    loader.close()


@pytest.mark.parametrize(
    "accepted",
    [
        {"persistent_workers": True},
        {"pin_memory": True, "device": "cuda:1"},
        {"pin_memory": False},
        {"pin_memory": False, "device": "numpy"},
    ],
)
def test_a_setting_of_torch_that_holds_anyway_is_accepted(shards, accepted):
    penstock.Loader.from_config({**PLAIN, "shards": shards, **accepted})
    penstock.Loader(shards, FIELDS, 4, **accepted)


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        ({"prefetch_factor": 4}, "prefetch_factor: prefetching .* memory_bytes"),
        ({"persistent_workers": False}, "persistent_workers: workers always live"),
        ({"pin_memory": True}, "pin_memory: memory is pinned if .* 'cpu'. Set device='cuda'"),
        ({"pin_memory": False, "device": "cuda"}, "pin_memory: .* 'cuda'"),
        ({"num_workers": 0, "engine": {"executor": "process"}}, "num_workers: 0 means no worker processes"),
        ({"num_workers": -1}, "num_workers=-1 is below 0"),
    ],
)
def test_a_setting_of_torch_that_cannot_be_met_is_refused_with_the_reason(shards, refused, reason):
    with pytest.raises(SettingError, match=f"^config: {reason}"):
        penstock.Loader.from_config({**PLAIN, "shards": shards, **refused})
    settings = {**refused, "engine": EngineOptions(**refused.get("engine", {}))}
    with pytest.raises(SettingError, match=f"^{reason}"):
        penstock.Loader(shards, FIELDS, 4, **settings)


# -- what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"bach_size": 8}, "config: bach_size: is not known. Perhaps batch_size is meant."),
        ({"batch_size": 2.5}, "config: batch_size: Expected `int"),
        ({"batch_size": True}, "config: batch_size: Expected `int"),
        ({"batch_size": 0}, "config: batch_size=0 is not above 0"),
        ({"shuffle": "please"}, "config: shuffle: Expected `bool`, got `str`"),
        ({"pin_memory": "yes please"}, "config: pin_memory: Expected `bool | null`, got `str`"),
        ({"device": 5}, "config: device: Expected `str`, got `int`"),
        ({"on_error": "ignore"}, "config: on_error: 'ignore' is not known. Use one of raise, skip, replace."),
        ({"engine": "thread"}, "config: engine: Expected `object | null`, got `str`"),
        ({"engine": {"executor": "gpu"}}, "config: engine.executor: 'gpu' is not known. Use one of auto, process, "),
        ({"engine": {"executor": ["gpu"]}}, "config: engine.executor: Expected `str`, got `array`"),
        ({"engine": {"timeout_s": 0}}, "config: engine: timeout_s=0.0 is not above 0"),
        ({"reading": {"num_reader": 3}}, "config: reading.num_reader: is not known. Perhaps num_readers is meant."),
        ({"reading": {"lanes": "many"}}, "config: reading.lanes: Expected `int | null`, got `str`"),
        ({"errors": {"max_bad_fraction": 2}}, "config: errors: max_bad_fraction=2.0 is not between 0 and 1"),
        ({"errors": {}, "on_error": "skip", "num_readers": 3}, "config: num_readers: is not known."),
        (
            {"errors": {"on_error": "skip"}, "on_error": "skip"},
            "config: on_error is given beside errors. Write errors=",
        ),
        ({"cache": 7}, "config: cache: Expected `object | null`, got `int`"),
        ({"cache": {"max_bytes": 7}}, "config: cache.folder: is missing"),
        ({"cache": "s3://bucket/x"}, "config: cache: the cache 's3://bucket/x' is not a folder"),
        ({"shards": 7}, "config: shards: Expected"),
        ({"shards": ["a.tar", 7]}, "config: shards[1]: Expected `str`, got `int`"),
        ({"fields": ["image"]}, "config: fields: Expected `object`, got `array`"),
        ({"fields": {"a": {"suffix": ".jpg"}}}, "config: fields.a.type: is missing. Use one of image, mask"),
        ({"fields": {"a": {"type": "photo"}}}, "config: fields.a.type: 'photo' is not known. Use one of image"),
        ({"fields": {"a": {"type": "image", "sise": 8}}}, "config: fields.a.sise: is not known. Perhaps size is meant"),
        ({"fields": {"a": {"type": "image", "size": "8"}}}, "config: fields.a.size: Expected `int"),
        ({"fields": {"a": {"type": "image", "size": 0}}}, "config: fields.a: an image of size 0 has no pixels"),
        ({"fields": {"a": {"type": "image", "fit": "zoom"}}}, "config: fields.a.fit: 'zoom' is not known. Use one of"),
        ({"fields": {"a": {"type": "json"}}}, "config: fields.a.suffix: is missing"),
        ({"fields": {"a": {"type": "geometry"}}}, "config: fields.a.like: is missing"),
        (
            {"fields": {"a": {"type": "image", "crop": {"scal": 1}}}},
            "config: fields.a.crop.scal: is not known. Perhaps",
        ),
        ({"fields": {"a": {"type": "image", "crop": {"scale": [1, 2]}}}}, "config: fields.a.crop: scale=(1.0, 2.0): a"),
        ({"fields": {"a": {"type": "image", "crop": "middle"}}}, "config: fields.a.crop: 'middle' is not known. Use"),
        (
            {"fields": {"a": {"type": "image", "gpu_transform": {"men": 1}}}},
            "config: fields.a.gpu_transform.men: is not",
        ),
        ({"fields": {"a": {"type": "image", "gpu_transform": 7}}}, "config: fields.a.gpu_transform: Expected `object"),
        ({"fields": {"a": {"type": "label", "suffix": "x", "classes": 7}}}, "config: fields.a.classes: Expected `str"),
        ({"transform": "math.sqrt"}, "config: transform: 'math.sqrt' names no function. Write"),
        ({"transform": "no_such_module:f"}, "config: transform: 'no_such_module:f' cannot be imported: No module"),
        ({"transform": "math:no_such"}, "config: transform: 'math:no_such' cannot be imported"),
        ({"transform": "math:pi"}, "config: transform: 'math:pi' is not a function"),
        ({"collate_fn": "a:b"}, "config: collate_fn: is an object, which no file can hold"),
        ({"nothing_like_it": 1}, "config: nothing_like_it: is not known. There are shards, fields, batch_size"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(shards, wrong, message):
    assert refusal({**PLAIN, "shards": shards, **wrong}).startswith(message)


@pytest.mark.parametrize("missing", ["shards", "fields", "batch_size"])
def test_a_missing_key_is_named(shards, missing):
    given = {key: value for key, value in {**PLAIN, "shards": shards}.items() if key != missing}
    assert missing in refusal(given)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("batch_size: 4\nbatch_size: 8\n", "does not read as YAML: 'batch_size' is repeated"),
        ("fields: {a: {type: raw, type: json}}\n", "does not read as YAML: 'type' is repeated"),
        ("a: [1, 2\n", "does not read as YAML: while parsing"),
        ("a: !!python/object/apply:os.getcwd []\n", "does not read as YAML: tags are not allowed"),
        ("batch_size: 0b_\n", "does not read as YAML: "),
        ("- shards\n", "holds no keys"),
        ("", "holds no keys"),
        ("fields: {a: {type: image, size: x}}\nbatch_size: 2\nshards: a\n", "fields.a.size: Expected `int"),
        ("#" * (config.MAX_BYTES + 1), "more than 1048576 bytes are no config"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name(write, text, reason):
    path = write(text)
    assert refusal(path).startswith(f"{path}: {reason}")


def test_a_merged_key_may_be_set_again(write):
    path = write("x: &x {type: image, size: 8}\nbatch_size: 1\n")
    assert "x: is not known" in refusal(path)
    path = write("shards: a\nbatch_size: 0\nfields:\n  a: &a {type: image, size: 8}\n  b: {<<: *a, size: 9}\n")
    assert "batch_size=0 is not above 0" in refusal(path)


def test_a_missing_file_is_named(tmp_path):
    assert refusal(tmp_path / "no.yaml") == f"{tmp_path / 'no.yaml'}: cannot be read: No such file or directory"


def test_missing_shards_are_an_error_of_their_own(tmp_path):
    with pytest.raises((StorageError, SettingError), match="nowhere"):
        penstock.Loader.from_config({**PLAIN, "shards": str(tmp_path / "nowhere.tar")})


@pytest.mark.parametrize(
    "key", ["shards", "fields", "batch_size", "device", "engine", "cache", "transform", "pin_memory"]
)
def test_an_alias_bomb_is_refused_without_expanding_it(write, key):
    levels = ["&x0 [x]", *(f"&x{n} [{', '.join([f'*x{n - 1}'] * 10)}]" for n in range(1, 40))]
    text = f"seed: 1\n{key}: [{', '.join(levels)}]\n"
    plain = {"shards": "a", "fields": "{a: {type: raw, suffix: .a}}", "batch_size": 1}
    text += "".join(f"{name}: {value}\n" for name, value in plain.items() if name != key)
    assert f"train.yaml: {key}" in refusal(write(text))


# -- plans -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def plan(tmp_path):
    """Write a plan for this machine, or for one with other facts."""

    def write(loader, **machine):
        here = fingerprint(machine_facts())
        found = {"machine": {**here["machine"], **machine}}
        save_plan(Plan(source="recording", fingerprint=found, loader=loader), tmp_path / "plan.yaml")
        return tmp_path / "plan.yaml"

    return write


def planned(plan, **settings):
    return config.build(_keep, {"shards": "x.tar", **PLAIN, **settings}, plan)


def test_a_plan_sets_what_the_config_leaves_open(plan, caplog):
    path = plan({"reading": {"num_readers": 3, "lanes": 32}, "num_workers": 5})
    found = {"reading": ReadOptions(num_readers=3, lanes=32), "num_workers": 5, "batch_size": 4}
    assert found.items() <= planned(path).items()
    found = {"reading": ReadOptions(num_readers=8, lanes=32), "num_workers": 5}
    assert found.items() <= planned(path, reading={"num_readers": 8}).items()
    assert caplog.messages == []


def test_the_config_goes_before_the_plan(plan):
    path = plan({"num_workers": 5, "cache": "/planned"})
    assert planned(path, num_workers=0)["num_workers"] == 0
    assert planned(path)["cache"] == CacheOptions("/planned")
    assert planned(path, cache={"max_bytes": 9})["cache"] == CacheOptions("/planned", 9)
    assert planned(path, cache="/own")["cache"] == CacheOptions("/own")


def test_a_loader_is_made_with_the_plans_settings(plan, shards, monkeypatch):
    path = plan({"num_workers": 1, "engine": {"executor": "thread"}})
    loader = penstock.Loader.from_config({**PLAIN, "shards": shards}, plan=path)
    assert loader.num_workers == 1
    assert len(keys_of(loader)) == SAMPLES
    loader.close()


def test_a_plan_for_another_machine_is_used_with_warnings(plan, caplog):
    path = plan({"reading": {"num_readers": 3}}, usable_cores=1000, platform="Windows AMD64")
    assert planned(path)["reading"].num_readers == 3
    assert [message.partition(": ")[0] for message in caplog.messages] == [str(path)] * 2
    assert "counts on 1000 usable cores" in caplog.text
    assert "is for Windows AMD64" in caplog.text


def test_a_plan_that_sets_nothing_of_a_loader_is_logged(plan, caplog):
    assert planned(plan({})) == arguments()
    assert "sets nothing of penstock.Loader" in caplog.text


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        ({"num_worker": 3}, "loader.num_worker: is not known. Perhaps num_workers is meant."),
        ({"reading": {"readers": 3}}, "loader.reading.readers: is not known."),
        ({"reading": {"num_readers": "three"}}, "loader.reading.num_readers: Expected `int"),
        (
            {"engine": {"executor": "gpu"}},
            "loader.engine.executor: 'gpu' is not known. Use one of auto, process, thread.",
        ),
        ({"shards": "other.tar"}, "loader.shards: is not known"),
        ({"transform": "os:system"}, "loader.transform: is not known"),
        ({"collate_fn": "a:b"}, "loader.collate_fn: is not known"),
    ],
)
def test_a_wrong_value_in_a_plan_is_refused_with_the_plans_name(plan, loader, message):
    path = plan(loader)
    with pytest.raises(SettingError) as caught:
        planned(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_a_missing_plan_is_named(tmp_path):
    with pytest.raises(SettingError, match=r"no\.yaml: cannot be read"):
        planned(tmp_path / "no.yaml")
