"""All set-ups, which a process imports once before it is forked."""

from importlib import import_module
from pkgutil import iter_modules

from . import __path__ as folders

for _module in iter_modules(folders, f"{__package__}."):
    import_module(_module.name)
