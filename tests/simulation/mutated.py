"""The product with one fault in it, in this process: a module is compiled from mutated source as it is imported."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from tests.mutants.mutation import Mutation


class _MutatedLoader(SourceFileLoader):
    """Loads a module from its source, changed by a mutation."""

    mutation: Mutation

    def get_code(self, fullname: str) -> CodeType:
        """See importlib."""
        source = self.get_data(self.path).decode()
        code: CodeType = compile(self.mutation.applied(source), self.path, "exec")
        return code


class MutatedFinder(MetaPathFinder):
    """Finds the one module that a mutation is of."""

    def __init__(self, mutation: Mutation) -> None:
        """To be put in front of `sys.meta_path` before anything of the product is imported."""
        self._mutation = mutation
        self._name = f"leveret.{mutation.file.removesuffix('.py').replace('/', '.')}"

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See importlib."""
        if fullname != self._name:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            return spec
        loader = _MutatedLoader(fullname, spec.origin)
        loader.mutation = self._mutation
        spec.loader = loader
        return spec


def install(mutation: Mutation) -> None:
    """Have the product's module be the mutated one, from now on."""
    assert not any(name.startswith("leveret.") for name in sys.modules), "the product is imported already"
    sys.meta_path.insert(0, MutatedFinder(mutation))
