"""Studies, rules and attacks of one's own on the command line: found, run, recorded, and refused in one line."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import pytest
from commands import assert_refused, assert_same_bits, rows_of, varangian_
from forked import Command
from own_files import MINE, STUDY, forgotten, importable, write_own, write_package

pytestmark = pytest.mark.usefixtures("no_figures")

SMALL = ("run", "target-localization", "--set", "agents=8", "--rounds", "3")
OWN = ("run", "mystudy.py", "--rule", "mine.py:exponential:eta=2", "--attack", "./mine.py:nudge", "--byzantine", "2")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with `mine.py` and `mystudy.py`, as the current one."""
    monkeypatch.chdir(tmp_path)
    write_own(tmp_path)
    with forgotten(tmp_path):
        yield tmp_path


def test_own_study_rule_and_attack_run_and_are_recorded(here: Path) -> None:
    said = varangian_(*OWN, "--rule", "alone", "--set", "items=12", "--seeds", 2, "--out", "run")
    assert said.status == 0, said.err
    assert "mine.py:exponential:eta=2" in said.out
    rows = rows_of(here / "run")
    assert {(row["study"], row["rule"], row["attack"]) for row in rows} == {
        ("landmines", "mine.py:exponential:eta=2", "mine.py:nudge"),
        ("landmines", "alone", "mine.py:nudge"),
    }
    config = tomllib.loads((here / "run" / "config.toml").read_text(encoding="utf-8"))
    assert config["study"] == "mystudy.py" and config["settings"]["items"] == 12
    for name in ("mine.py", "mystudy.py"):
        hashed = sha256((here / name).read_bytes()).hexdigest()
        assert config["sources"][name] == {"path": str(here / name), "sha256": hashed}


def test_the_configuration_runs_again_from_anywhere(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert varangian_(*OWN, "--seeds", 2, "--out", "run").status == 0
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    said = varangian_("run", here / "run" / "config.toml", "--out", "again")
    assert said.status == 0, said.err
    assert_same_bits(here / "run", here / "elsewhere" / "again")
    first, second = (folder / "config.toml" for folder in (here / "run", here / "elsewhere" / "again"))
    assert first.read_text(encoding="utf-8") == second.read_text(encoding="utf-8")


def test_a_study_that_forgets_to_seed_torch_repeats_too(here: Path) -> None:
    (here / "forgetful.py").write_text(STUDY.replace("torch.manual_seed(seed)", "pass"), encoding="utf-8")
    for out in ("one", "two"):
        assert varangian_("run", "forgetful.py", "--rule", "alone", "--seeds", 2, "--out", out).status == 0
    assert_same_bits(here / "one", here / "two")
    assert len({row["loss_mean"] for row in rows_of(here / "one")}) > 1


def test_a_source_that_is_gone_is_said_to_be(here: Path) -> None:
    assert varangian_(*OWN, "--out", "run", "-q").status == 0
    (here / "mine.py").rename(here / "moved.py")
    said = varangian_("run", "run/config.toml", "--out", "again")
    assert_refused(said, ["no file mine.py", str(here / "run"), f"none at {here / 'mine.py'}"])
    (here / "moved.py").rename(here / "run" / "mine.py")  # beside the configuration it is found again
    assert varangian_("run", "run/config.toml", "--out", "again", "-q").status == 0


def test_paths_in_a_configuration_refer_to_its_folder_and_typed_ones_to_this_one(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = 'study = "mystudy.py"\nrules = ["mine.py:exponential"]\nbyzantine = [0]\n'
    (here / "plan.toml").write_text(plan, encoding="utf-8")
    (here / "below").mkdir()
    monkeypatch.chdir(here / "below")
    assert varangian_("run", "../plan.toml").status == 0
    assert_refused(varangian_("run", "../plan.toml", "--rule", "mine.py"), ["no file mine.py", str(here / "below")])
    (here / "below" / "mine.py").write_text(MINE, encoding="utf-8")
    assert varangian_("run", "../plan.toml", "--rule", "mine.py").status == 0
    both = varangian_("run", "../plan.toml", "--attack", "mine.py")
    assert_refused(both, ["mine.py means two files", str(here / "mine.py"), str(here / "below" / "mine.py")])


@pytest.mark.parametrize("file", ["mine.py", "mystudy.py", "beside.py"])
def test_a_changed_source_is_not_resumed(here: Path, file: str) -> None:
    (here / "beside.py").write_text("factor = 1\n", encoding="utf-8")
    (here / "mine.py").write_text(MINE.replace("import torch\n", "import torch\nimport beside\n"), encoding="utf-8")
    assert varangian_(*OWN, "--out", "run", "-q").status == 0
    assert varangian_(*OWN, "--out", "run", "-q", "--resume").status == 0
    before = {path: path.read_bytes() for path in (here / "run").rglob("*") if path.is_file()}
    source = here / file
    source.write_text(source.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
    for again in (OWN, ("run", "run/config.toml")):
        assert_refused(varangian_(*again, "--out", "run", "--resume"), [f"{file} has changed", "SHA-256"])
    assert before == {path: path.read_bytes() for path in (here / "run").rglob("*") if path.is_file()}
    assert varangian_(*OWN, "--out", "run", "-q", "--overwrite").status == 0


def test_a_tournament_with_a_changed_rule_is_not_resumed(here: Path) -> None:
    args = ("tournament", "mystudy.py", "--rules", "mine.py:exponential", "--attacks", "mine.py,silent", "--seeds", 1)
    assert varangian_(*args, "--jobs", 1, "--out", "t").status == 0
    assert varangian_(*args, "--jobs", 1, "--out", "t", "--resume", "--rules", "average").status == 0
    (here / "mine.py").write_text(MINE.replace("-self.eta", "-2 * self.eta"), encoding="utf-8")
    assert_refused(varangian_(*args, "--out", "t", "--resume"), ["mine.py has changed"])


def test_a_tournament_in_several_processes(here: Path) -> None:
    """The other processes cannot import `mine.py`: it is sent to them."""
    args = ("--rules", "mine.py", "--attacks", "mine.py:nudge:step=3", "--byzantine", 2, "--seeds", 1)
    said = varangian_("tournament", "mystudy.py", *args, "--jobs", 2, "--out", "t")
    assert said.status == 0, said.err
    table = (here / "t" / "tournament.csv").read_text(encoding="utf-8")
    assert "mine.py,mine.py:nudge:step=3,2,1,test_loss" in table and "failed" not in table


TYPED: dict[str, Sequence[object]] = {
    "the only one of its kind": ("--rule", "mine.py", "--attack", "mine.py"),
    "parameters of the only one": ("--rule", "mine.py:eta=3", "--attack", "mine.py:step=1"),
    "hyphens": ("--rule", "odd names,in it/my-rules.py:two-words"),
    "underscores": ("--rule", "odd names,in it/my-rules.py:two_words:eta=2"),
    "two in one option": ("--rule", "mine.py:exponential:eta=2,mine.py:exponential:eta=3,alone"),
    "a comma in a path": ("--rule", "alone,odd names,in it/my-rules.py,average"),
    "in a wrapper": ("--rule", "anchored:rule=mine.py:exponential", "--rule", "verified:rule=mine.py:eta=2"),
    "in a wrapper with parameters": ("--attack", "strongest:of=mine.py:nudge,rounds=1"),
    "in a wrapper, with its own parameters": ("--attack", "strongest:rounds=1,of=mine.py:nudge:step=3"),
    "a comma in the path of a wrapped one": ("--rule", "anchored:rule=odd names,in it/my-rules.py:two-words"),
    "an equals sign in a path": ("--rule", "a=b/mine.py:exponential"),
    "a module": ("--rule", "package.rules:exponential", "--attack", "package.rules:nudge:step=2"),
    "a built-in one by its module": ("--rule", "varangian.rules:loss_based"),
    "an object": ("--rule", "objects.py:slow", "--rule", "objects.py:slow:eta=2"),
    "a class without dataclass": ("--rule", "ordinary.py:eta=2"),
}


@pytest.fixture
def more(here: Path) -> Path:
    (here / "odd names,in it").mkdir()
    renamed = MINE.replace("class exponential", "class two_words")
    (here / "odd names,in it" / "my-rules.py").write_text(renamed, encoding="utf-8")
    for folder in ("a=b", "package"):
        (here / folder).mkdir()
    (here / "a=b" / "mine.py").write_text(MINE, encoding="utf-8")
    (here / "package" / "rules.py").write_text(MINE, encoding="utf-8")
    (here / "objects.py").write_text(MINE + "\n\nslow = exponential(0.1)\n", encoding="utf-8")
    ordinary = MINE.replace("@dataclass(frozen=True)\nclass exponential", "class exponential")
    ordinary = ordinary.replace("    eta: float = 1.0\n", "    def __init__(self, eta=1.0):\n        self.eta = eta\n")
    (here / "ordinary.py").write_text(ordinary, encoding="utf-8")
    return here


@pytest.mark.parametrize("case", TYPED)
def test_names_as_they_may_be_typed(case: str, more: Path) -> None:
    said = varangian_(*SMALL, *TYPED[case], "--byzantine", 2)
    assert said.status == 0, said.err


def test_absolute_paths_and_the_home_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    for path in (here / "mine.py", "~/mine.py"):
        said = varangian_(*SMALL, "--byzantine", 0, "--rule", f"{path}:exponential")
        assert said.status == 0 and f"{path}:exponential" in said.out


def test_an_own_attack_has_the_parameters_of_an_own_study(here: Path) -> None:
    study = STUDY.replace("(vg.attacks.uniform(0, 5),)", "(nudge(7.0),)").replace(
        "import torch", "import torch\n" + MINE
    )
    (here / "both.py").write_text(study, encoding="utf-8")
    loss: dict[str, str] = {}
    for attack in ("", "nudge", "both.py:nudge", "nudge:step=7", "both.py:nudge:step=7", "nudge:step=1"):
        options = ("--attack", attack) if attack else ()
        args = ("--rule", "average", "--byzantine", 2, "--out", "run", "--overwrite")
        assert varangian_("run", "both.py", *args, *options).status == 0
        loss[attack] = rows_of(here / "run")[0]["test_loss_mean"]
    assert len({loss[attack] for attack in loss if attack != "nudge:step=1"}) == 1
    assert loss["nudge"] != loss["nudge:step=1"]


SOURCES: dict[str, str | bytes] = {
    "syntax.py": "x = 1\nclass bad(:\n",
    "imports.py": "import torch\nimport nowhere_at_all\n",
    "fails.py": "def f():\n    return 1 / 0\n\n\nf()\n",
    "leaves.py": "import sys\n\nsys.exit(3)\n",
    "empty.py": "",
    "bytes.py": b"x = '\xff\xfe'\n",
    "nul.py": b"x = 1\0\n",
    "not_a_rule.py": "class half:\n    def init(self, table):\n        return ()\n\n\nfactor = 3\n",
    "needs.py": MINE.replace("eta: float = 1.0", "eta: float"),
    "constructor.py": MINE.replace(
        "    def init(self, table)",
        '    def __post_init__(self):\n        raise KeyError("gone")\n\n    def init(self, table)',
    ),
    "start.py": MINE.replace(
        "    def init(self, table):\n        return ()", "    def init(self, table):\n        return 0 / 0"
    ),
    "hint.py": MINE.replace("eta: float", "eta: 'Nowhere'"),
    "two.py": MINE + MINE.replace("class exponential", "class other"),
    "no_scene.py": STUDY.replace("def scene", "def scenes"),
    "no_metric.py": STUDY.replace('    metric: ClassVar[str] = "test_loss"\n', ""),
    "no_dataclass.py": STUDY.replace("@dataclass(frozen=True)\n", ""),
    "only_a_task.py": STUDY.replace("return vg.Scene(task, vg.Graph.complete(self.agents))", "return task"),
    "no_data.py": STUDY.replace("torch.manual_seed(seed)", 'open("missing.csv")'),
    "bad_name.py": STUDY.replace('"landmines"', '"../x"'),
    "taken_name.py": STUDY.replace('"landmines"', '"school"'),
}
BAD_RULES: dict[str, Sequence[str]] = {
    "mine.py:exponental": ["rule in mine.py", "'exponental'", "'exponential'"],
    "mine.py:nudge": ["mine.py line 25", "not a rule", "no combine"],
    "mine": ["'mine'", "'mine.py'"],
    "min.py": ["no file min.py", "mine.py?"],
    "missing/mine.py": ["no file missing/mine.py"],
    "syntax.py": ["syntax.py line 2: SyntaxError"],
    "imports.py": ["imports.py line 2: ModuleNotFoundError", "nowhere_at_all"],
    "fails.py": ["fails.py line 2: ZeroDivisionError"],
    "leaves.py": ["leaves.py line 3: SystemExit: 3"],
    "empty.py": ["empty.py holds no rule"],
    "empty.py:x": ["empty.py holds no rule", "named x"],
    "bytes.py": ["bytes.py line 1: SyntaxError"],
    "nul.py": ["nul.py: SyntaxError"],
    "not_a_rule.py": ["not_a_rule.py holds no rule"],
    "not_a_rule.py:half": ["not_a_rule.py line 1: half is not a rule", "no combine"],
    "not_a_rule.py:factor": ["not_a_rule.py line 6: factor is not a rule", "no init and combine"],
    "needs.py": ["needs.py", "needs a value for eta", "eta=…"],
    "constructor.py": ["constructor.py line 17: KeyError: 'gone'"],
    "start.py": ["start.py line 17: ZeroDivisionError"],
    "hint.py": ["hint.py", "NameError", "Nowhere"],
    "two.py": ["two.py: its rules are exponential, other", "two.py:exponential"],
    "folder.py": ["folder.py is not a file"],
    "mine.py:exponential:eat=2": ["'eat'", "'eta'"],
    "mine.py:exponential:eta=two": ["eta takes a number", "'two'"],
    "mine.py:exponential:eta": ["'eta'", "parameter=value"],
    "package.module:rule": ["package.module", "No module named"],
    "os.path:join": ["os.path", "join is not a rule"],
    "anchored:rule=mine.py:exponental": ["'exponental'", "'exponential'"],
    "anchored:rule=syntax.py": ["syntax.py line 2: SyntaxError"],
}
BAD_ATTACKS: dict[str, Sequence[str]] = {
    "mine.py:nugde": ["attack in mine.py", "'nugde'", "'nudge'"],
    "mine.py:exponential": ["mine.py line 10: exponential is not an attack", "no send"],
    "strongest:of=mine.py:exponential": ["does not declare its strength"],
}
BAD_STUDIES: dict[str, Sequence[str]] = {
    "mystudy.py:landmine": ["study in mystudy.py", "'landmine'", "'landmines'"],
    "mystudi.py": ["no file mystudi.py", "mystudy.py?"],
    "mine.py": ["mine.py holds no study"],
    "no_scene.py:landmines": ["landmines is not a study", "no scene"],
    "no_metric.py": ["no_metric.py", "no metric"],
    "no_dataclass.py": ["no_dataclass.py", "@dataclass"],
    "only_a_task.py": ["scene(0)", "Task", "Scene"],
    "no_data.py": ["no_data.py line 31: FileNotFoundError", "missing.csv"],
    "bad_name.py": ["'../x'"],
    "taken_name.py": ["built-in study, school"],
    "mystudy.py:landmines:agents=3": ["--set agents=3"],
}
BAD = {f"--rule {name}": ((*SMALL, "--rule", name), parts) for name, parts in BAD_RULES.items()}
BAD |= {f"--attack {name}": ((*SMALL, "--attack", name), parts) for name, parts in BAD_ATTACKS.items()}
BAD |= {name: (("run", name), parts) for name, parts in BAD_STUDIES.items()}


@pytest.mark.parametrize("case", BAD)
def test_errors_in_own_files_are_one_line_and_nothing_is_written(case: str, here: Path) -> None:
    for name, source in SOURCES.items():
        (here / name).write_bytes(source if isinstance(source, bytes) else source.encode())
    (here / "folder.py").mkdir()
    before = set(here.iterdir())
    args, parts = BAD[case]
    assert_refused(varangian_(*args, "--out", "made/run"), parts)
    assert set(here.iterdir()) == before


def test_a_source_in_a_configuration_is_checked(here: Path) -> None:
    for entry in (
        '"x"',
        '{ path = 3, sha256 = "" }',
        '{ path = "mine.py", sha256 = "short" }',
        '{ path = "a", more = 1 }',
    ):
        text = f'study = "mystudy.py"\n[sources]\n"mine.py" = {entry}\n'
        (here / "plan.toml").write_text(text, encoding="utf-8")
        assert_refused(varangian_("run", "plan.toml"), ["plan.toml", "mine.py", "[sources]", "sha256"])


def test_a_report_does_not_run_own_code(here: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert varangian_(*OWN, "--out", "run", "-q").status == 0
    for name in ("mine.py", "mystudy.py"):
        (here / name).write_text("raise SystemExit('run')\n", encoding="utf-8")
    status, _, said = Command("report", here / "run", said=tmp_path_factory.mktemp("said")).end()
    assert status == 0, said
    page = (here / "run" / "report.html").read_text(encoding="utf-8")
    assert "varangian run mystudy.py --rule mine.py:exponential:eta=2 --attack mine.py:nudge --byzantine 2" in page


def test_cards_of_own_files(here: Path) -> None:
    card = varangian_("rules", "mine.py:exponential").out
    assert card == "mine.py:exponential: Weights fall exponentially with the loss.\n\n  eta = 1.0: How fast.\n"
    assert varangian_("attacks", "mine.py").out.startswith("mine.py: Everything a little larger.")
    assert "items = 10" in varangian_("studies", "mystudy.py").out
    (here / "two.py").write_text(SOURCES["two.py"], encoding="utf-8")  # type: ignore[arg-type]
    listed = varangian_("rules", "two.py").out.splitlines()
    assert [line.split()[0] for line in listed] == ["exponential", "other"]
    assert json.loads(varangian_("rules", "mine.py", "--json").out)["parameters"][0]["name"] == "eta"
    assert_refused(varangian_("rules", "mine.py:exponental"), ["'exponential'"])


GROUPS = {
    "varangian.rules": {"weigh_by_exp": "ours.things:exponential", "average": "ours.things:exponential"},
    "varangian.attacks": {"nudge": "ours.things:nudge", "broken": "ours.nothing:nudge"},
}


def test_installed_packages_announce_what_they_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_package(tmp_path / "site", GROUPS)
    with importable(tmp_path / "site"):
        listed = varangian_("rules")
        assert "weigh-by-exp" in listed.out and "(ours 1.2)" in listed.out
        assert listed.err == "varangian: ours 1.2 announces the rule average, but that is a built-in rule\n"
        told = {row["name"]: row for row in json.loads(varangian_("attacks", "--json").out)}
        assert told["nudge"]["package"] == "ours 1.2"
        assert "cannot be loaded" in told["broken"]["description"]
        assert "eta = 1.0" in varangian_("rules", "weigh-by-exp").out
        said = varangian_(*SMALL, "--rule", "weigh-by-exp:eta=2", "--attack", "nudge", "--byzantine", 2, "--out", "run")
        assert said.status == 0, said.err
        config = tomllib.loads((tmp_path / "run" / "config.toml").read_text(encoding="utf-8"))
        assert config["sources"]["weigh-by-exp"]["path"].endswith("ours/things.py")
        assert_refused(varangian_(*SMALL, "--attack", "broken"), ["broken", "ours 1.2", "ours.nothing"])
        assert_refused(varangian_(*SMALL, "--rule", "weigh-by-xp"), ["'weigh-by-exp'"])


def test_the_current_folder_can_be_imported_from_but_does_not_hide_packages(here: Path) -> None:
    (here / "torch").mkdir()
    (here / "torch" / "__init__.py").write_text("raise RuntimeError('the wrong torch')", encoding="utf-8")
    (here / "rules_of_mine").mkdir()
    (here / "rules_of_mine" / "one.py").write_text(MINE, encoding="utf-8")
    code = "import sys; sys.path[:] = filter(None, sys.path); from varangian.cli import main; main()"
    command = [sys.executable, "-c", code, *map(str, SMALL), "--rule", "rules_of_mine.one:exponential", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=here, timeout=1200)
    assert (done.returncode, done.stderr) == (0, "")
