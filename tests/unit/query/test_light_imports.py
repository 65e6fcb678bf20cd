"""The API starts without the engine's compiler, which takes seconds to load."""

from __future__ import annotations

import subprocess
import sys


def test_the_api_is_imported_without_the_compiler() -> None:
    program = "import sys, kalla.app.api; sys.exit('numba' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], timeout=120, check=False).returncode == 0
