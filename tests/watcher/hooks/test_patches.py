from penstock.watcher.hooks.patches import FunctionPatch


class PatchedModule:
    """Stands for a module with one function."""

    @staticmethod
    def name():
        return "original"


def wrap(function):
    return lambda: f"wrapper({function()})"


def test_a_function_patch_can_be_enabled_and_disabled_repeatedly():
    patch = FunctionPatch(PatchedModule, "name", wrap)
    original = PatchedModule.name
    for _ in range(2):
        patch.enable()
        patch.enable()
        assert PatchedModule.name() == "wrapper(original)"
        patch.disable()
        patch.disable()
        assert PatchedModule.name is original


def test_enable_wraps_a_replacement_made_while_the_patch_was_disabled(monkeypatch):
    patch = FunctionPatch(PatchedModule, "name", wrap)
    patch.enable()
    patch.disable()
    monkeypatch.setattr(PatchedModule, "name", lambda: "replacement")
    patch.enable()
    assert PatchedModule.name() == "wrapper(replacement)"
    patch.disable()
    assert PatchedModule.name() == "replacement"


def test_disable_keeps_a_replacement_made_while_the_patch_was_enabled(monkeypatch):
    patch = FunctionPatch(PatchedModule, "name", wrap)
    patch.enable()
    wrapper = PatchedModule.name
    monkeypatch.setattr(PatchedModule, "name", lambda: f"replacement({wrapper()})")
    patch.disable()
    assert PatchedModule.name() == "replacement(wrapper(original))"
