"""CRC-32C, the checksum of record batches: the compiled function of the `crc32c` package, and not the package.

The package asks for its own version through `importlib.metadata`, which nobody else here needs: without it a broker
starts 30 ms sooner and is 3.5 MB smaller.
"""

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Protocol, cast

from penstock.model.ports import Buffer


class Checksum(Protocol):
    def __call__(self, data: Buffer, value: int = 0) -> int: ...


def _load() -> Checksum:
    package = find_spec("crc32c")
    compiled = package and PathFinder.find_spec("_crc32c", package.submodule_search_locations)
    if compiled is None or compiled.loader is None:
        from crc32c import crc32c

        return crc32c
    module = module_from_spec(compiled)
    compiled.loader.exec_module(module)
    return cast(Checksum, module.crc32c)


crc32c = _load()
