"""The examples of docs/client.md, run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

from penstock.testing import Broker

PAGE = Path(__file__).parents[2] / "docs" / "client.md"


def test_the_examples_run() -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) >= 6
    with Broker() as broker:
        for example in examples:
            code = example.replace("localhost:9092", broker.bootstrap)
            result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
            assert result.returncode == 0, f"{code}\n{result.stderr}"
            assert result.stderr == "", result.stderr
