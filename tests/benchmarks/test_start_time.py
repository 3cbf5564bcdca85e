"""The start benchmark: when it refuses to measure."""

import pytest
import torch

from benchmarks.start_time import main


def test_a_wrong_call_measures_nothing(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--runs", "0"])
    assert caught.value.code == 2
    assert "--runs: at least 1 is needed" in capsys.readouterr().err
    if not torch.cuda.is_available():
        assert main([]) == 2
        assert "a CUDA GPU is needed" in capsys.readouterr().err
