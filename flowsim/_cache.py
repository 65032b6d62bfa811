"""JAX's persistent compilation cache in the user's cache folder. Only the command line switches it on.

A library must not write into a user's home unasked, so `import flowsim` leaves JAX's configuration alone. JAX and
equinox read these settings from the environment when they are first imported, so `enable` runs before that and imports
nothing heavy.
"""

import os
import pathlib
from collections.abc import MutableMapping

import platformdirs

# Programs that take longer to compile than this are worth a file; JAX's own default (1 s) would keep few of flowsim's.
_MIN_COMPILE_SECONDS = "0.1"


def enable(environ: MutableMapping[str, str] = os.environ) -> None:
    """Points JAX at flowsim's cache folder, unless the user has chosen a folder or switched the cache off.

    A folder that cannot be made leaves the cache off: the same results, only compiled anew.

    Args:
        environ: where JAX will look for its settings.
    """
    if "JAX_COMPILATION_CACHE_DIR" in environ or "JAX_ENABLE_COMPILATION_CACHE" in environ:
        return
    folder = pathlib.Path(platformdirs.user_cache_dir("flowsim", appauthor=False)) / "jax"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if not os.access(folder, os.W_OK):
        return
    environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", _MIN_COMPILE_SECONDS)
    environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    # diffrax's checks call back into Python, and JAX keeps no program that does; as NaNs they need no callback. flowsim
    # reads how a solve ended from its status either way.
    environ.setdefault("EQX_ON_ERROR", "nan")
