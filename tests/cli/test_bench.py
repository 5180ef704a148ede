"""`sightline bench`: a door to the source tree's measuring."""

import sightline.cli.commands.manage.bench as door
from sightline.cli.main import main


def test_without_the_repository_it_says_so_in_one_line(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(door, "ROOT", tmp_path)
    assert main(["bench", "decode"]) == 2
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    assert "a checkout of the repository" in output


def test_unknown_work_and_no_rounds_are_refused(capsys) -> None:
    assert main(["bench", "dance"]) == 2
    assert main(["bench", "decode", "--rounds", "0"]) == 2
    assert "--rounds 0" in capsys.readouterr().err


def test_it_hands_the_words_on(monkeypatch) -> None:
    import bench.native.__main__ as measuring
    import bench.training

    asked = []
    monkeypatch.setattr(measuring, "main", lambda words: asked.append(words))
    monkeypatch.setattr(bench.training, "main", lambda rounds: asked.append(rounds))
    assert main(["bench", "prefill", "--rounds", "3", "--threads", "1", "--large"]) == 0
    assert main(["bench", "--rounds", "4"]) == 0
    assert main(["bench", "train"]) == 0
    assert main(["bench", "serve"]) == 0
    assert asked == [
        ["prefill", "--rounds", "3", "--threads", "1", "--large"],
        ["--rounds", "4"],
        4,
        5,
        ["streams"],
    ]
