"""All findings as one offline page, or as Markdown with its figures beside it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from sightline.errors import InputError
from sightline.lab.catalogue import EXPERIMENTS
from sightline.lab.experiment import Finding, Power, Words
from sightline.lab.statistics import MOST_SEEDS
from sightline.lab.style import has_japanese_font, save_figure
from sightline.lab.tuning import rate_text
from sightline.lens.draw.page import FigureSection, ProseSection, Section, TableSection, save_page

LABELS = {
    "claim": Words("Claim", "主張"),
    "source": Words("Source", "出典"),
    "equation": Words("Equation", "式"),
    "look": Words("What to look for", "図の見方"),
    "notes": Words("Common mistakes", "よくある誤り"),
    "found": Words("Result", "結果"),
    "verdict": Words("Verdict", "判定"),
    "check": Words("statement", "主張の内容"),
    "holds": Words("holds", "成り立つか"),
    "numbers": Words("numbers", "数値"),
    "title": Words("The laboratory", "実験室"),
    "experiment": Words("experiment", "実験"),
    "work": Words("core-seconds", "1コアでの秒数"),
    "seeds": Words("seeds", "シード数"),
    "rates": Words("Tuned learning rates", "調整した学習率"),
    "power": Words("Power", "検出力"),
    "unmeasured": Words("Not measured yet", "未測定"),
    "runs": Words("The same experiments with other seeds", "別のシードでの結果"),
}
VERDICTS = {
    "supported": Words("supported", "支持される"),
    "not supported": Words("not supported", "支持されない"),
    "inconclusive": Words("inconclusive", "判定保留"),
}
HOLDS = {
    True: Words("yes", "はい"),
    False: Words("no", "いいえ"),
    None: Words("undecided", "判定保留"),
}


ENGLISH_FIGURES = "日本語フォントが見つからないため、図は英語で描かれている。"


def write_html(
    findings: Sequence[Finding],
    file: Path,
    *,
    language: str = "en",
    others: Sequence[Finding] = (),
) -> Path:
    """One self-contained page. `others` are findings with other seeds."""
    sections = [section for finding in findings for section in sections_of(finding, language)]
    runs = verdict_table([*findings, *others], language) if others else None
    repeated = [] if runs is None else [TableSection("", LABELS["runs"][language], *runs)]
    return save_page(
        [*overview(findings, language), *repeated, *sections],
        file,
        title=f"Sightline: {LABELS['title'][language]}",
    )


def overview(findings: Sequence[Finding], language: str) -> list[Section]:
    rows = [
        [
            finding.experiment.title[language],
            VERDICTS[finding.verdict][language],
            str(finding.seeds or ""),
            f"{finding.seconds:,.0f}",
            finding.tier,
        ]
        for finding in findings
    ]
    head = (
        LABELS["experiment"][language],
        LABELS["verdict"][language],
        LABELS["seeds"][language],
        LABELS["work"][language],
        "",
    )
    prose = [text.replace("`", "") for text in overview_texts(findings, language)]
    return [ProseSection(LABELS["title"][language], prose), TableSection("", "", head, rows)]


def verdict_table(
    findings: Sequence[Finding], language: str
) -> tuple[tuple[str, ...], list[list[str]]]:
    """Head and rows: the verdict of each experiment in the first column of its seed."""
    seeds = sorted({finding.seed for finding in findings})
    verdicts: dict[str, dict[int, str]] = {}
    titles: dict[str, str] = {}
    for finding in findings:
        name = finding.experiment.name
        titles.setdefault(name, finding.experiment.title[language])
        verdicts.setdefault(name, {})[finding.seed] = VERDICTS[finding.verdict][language]
    head = (LABELS["experiment"][language], *(f"--seed {seed}" for seed in seeds))
    rows = [
        [titles[name], *(row.get(seed, "") for seed in seeds)] for name, row in verdicts.items()
    ]
    return head, rows


def overview_texts(findings: Sequence[Finding], language: str) -> list[str]:
    """The number of claims per verdict, the rule, and the command that reproduces them."""
    counts = {
        verdict: sum(finding.verdict == verdict for finding in findings) for verdict in VERDICTS
    }
    each = {
        language: [f"{VERDICTS[verdict][language]} {count}" for verdict, count in counts.items()]
        for language in ("en", "ja")
    }
    again = "; ".join(sorted({f"`{rerun_command('all', finding)}`" for finding in findings}))
    libraries = ", ".join(
        f"{name} {value}"
        for name, value in sorted(
            {pair for finding in findings for pair in finding.versions.items()}
        )
    )
    rule = Words(
        "Verdicts are computed, never written by hand. A check over seeds holds if the whole 95%"
        " interval is on the claim's side, fails if all of it is on the other side, and is"
        " undecided otherwise, or where all seeds gave the same number. A claim is supported if all"
        " of its checks hold, not supported if one fails. Learning rates are chosen with pilot"
        " seeds, which are never judged; an arm whose best rate is the lowest or highest tried"
        " leaves its experiment undecided. Effects are in standard deviations between seeds (σ),"
        " from the mean to the bound.",
        "判定は人手で書かず、数値から計算する。シードごとの値の95%区間がすべて主張の側にあれば成り立ち、"
        "すべて反対側にあれば成り立たず、"
        "またぐとき、また全シードで同じ値になったときは判定保留とする。"
        "すべての項目が成り立てば支持され、1つでも成り立たなければ支持されない。"
        "学習率は試行用のシードで選び、それらは判定に使わない。最良の学習率が試した範囲の端にあれば判定保留とする。"
        "効果量は平均から境界までの距離で、シード間の標準偏差（σ）を単位とする。",
    )
    texts = [
        Words(
            f"{len(findings)} experiments: {', '.join(each['en'])}.",
            f"実験{len(findings)}件：{'、'.join(each['ja'])}。",
        ),
        rule,
        Words(
            f"To reproduce: {again}. Measured with {libraries}.",
            f"再現方法：{again}。測定環境：{libraries}。",
        ),
    ]
    if unmeasured := unmeasured_experiments(findings):
        label = LABELS["unmeasured"]
        names = ", ".join(unmeasured)
        texts.append(Words(f"{label.en}: {names}.", f"{label.ja}：{names}。"))
    note = [ENGLISH_FIGURES] if language == "ja" and not has_japanese_font() else []
    return [*(text[language] for text in texts), *note]


def unmeasured_experiments(findings: Sequence[Finding]) -> list[str]:
    """The experiments without a finished finding among these."""
    measured = {finding.experiment.name for finding in findings if finding.complete}
    return [name for name in EXPERIMENTS if name not in measured]


def rerun_command(name: str, finding: Finding) -> str:
    """The command that reproduces a finding."""
    words = [
        "sightline lab run",
        name,
        "" if finding.tier == "default" else f"--{finding.tier}",
        f"--seed {finding.seed}",
    ]
    return " ".join(word for word in words if word)


def sections_of(finding: Finding, language: str) -> list[Section]:
    """The explanation, the checks and the figures of one experiment."""
    rows = [
        [check.statement[language], HOLDS[check.holds][language], finding.measured(check, language)]
        for check in finding.checks
    ]
    head = tuple(LABELS[name][language] for name in ("check", "holds", "numbers"))
    verdict = f"{LABELS['verdict'][language]}: {VERDICTS[finding.verdict][language]}"
    sections: list[Section] = [
        ProseSection(finding.experiment.title[language], explanation_lines(finding, language)),
        TableSection("", verdict, head, rows),
    ]
    for name, figure in finding.figures(language).items():
        svg = io.StringIO()
        with finding.using_numbers():
            figure.savefig(svg, format="svg", metadata={"Date": None})
        sections.append(FigureSection("", name, svg.getvalue()))
    return sections


def design_lines(finding: Finding) -> list[Words]:
    """The tuned rates, and for each undecided check how many seeds would decide it."""
    lines = list[Words]()
    if finding.rates:
        text = rate_text(finding.rates, finding.experiment.arms)
        edge = ", ".join(finding.at_edge)
        en = f"; at the edge of the grid, so undecided: {edge}" if edge else ""
        ja = f"。範囲の端にあるので判定保留：{edge}" if edge else ""
        label = LABELS["rates"]
        lines.append(Words(f"{label.en}: {text.en}{en}", f"{label.ja}: {text.ja}{ja}"))
    lines += [power_line(finding, power) for power in finding.powers]
    return lines


def power_line(finding: Finding, power: Power) -> Words:
    """How many seeds would decide a check, and what they cost."""
    label = LABELS["power"]
    statement = power.statement
    if power.needed is None:
        return Words(
            f"{label.en}: {statement.en}: {power.seeds} seeds measured; at this effect more than"
            f" {MOST_SEEDS:,} would be needed",
            f"{label.ja}: {statement.ja}：{power.seeds}シードを測定。この効果量では {MOST_SEEDS:,}"
            " シードでも足りない",
        )
    minutes = max(0, power.needed - power.seeds) * finding.seconds_per_seed / 60
    return Words(
        f"{label.en}: {statement.en}: {power.seeds} seeds measured; about {power.needed:,} decide"
        f" it with a chance of 80% ({minutes:,.0f} more core-minutes)",
        f"{label.ja}: {statement.ja}：{power.seeds}シードを測定。約 {power.needed:,} シードあれば"
        f"80%の確率で判定できる（1コアであと{minutes:,.0f}分）",
    )


def explanation_lines(finding: Finding, language: str) -> list[str]:
    """Claim, source, equation, what to look for, result, common mistakes."""
    experiment = finding.experiment
    lines = {
        "claim": experiment.claim[language],
        "source": experiment.source,
        "equation": experiment.equation,
    }
    lines |= {"look": experiment.look_for[language]}
    if finding.summary is not None:
        lines["found"] = finding.summary[language]
    corrected = [
        f"{LABELS['notes'][language]}: {correction[language]}"
        for correction in experiment.corrections
    ]
    design = [line[language] for line in design_lines(finding)]
    return (
        [f"{LABELS[name][language]}: {text}" for name, text in lines.items()] + design + corrected
    )


def write_markdown(
    findings: Sequence[Finding],
    file: Path,
    *,
    language: str = "en",
    others: Sequence[Finding] = (),
) -> Path:
    """A Markdown page with its figures in the folder `figures` beside it. `others` are findings
    with other seeds."""
    pictures = file.parent / "figures"
    try:
        pictures.mkdir(parents=True, exist_ok=True)
        lines = [
            f"# {LABELS['title'][language]}",
            "",
            *(f"{text}  " for text in overview_texts(findings, language)),
            "",
        ]
        head = [LABELS[name][language] for name in ("experiment", "verdict", "seeds", "work")]
        lines += [f"| {' | '.join(head)} |", "|---|---|--:|--:|"]
        for finding in findings:
            title = f"[{finding.experiment.title[language]}](#{finding.experiment.name})"
            lines.append(
                f"| {title} | {VERDICTS[finding.verdict][language]} | {finding.seeds or ''}"
                f" | {finding.seconds:,.0f} |"
            )
        if others:
            header, rows = verdict_table([*findings, *others], language)
            lines += ["", f"{LABELS['runs'][language]}:", "", f"| {' | '.join(header)} |"]
            lines += ["|---" * len(header) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
        for finding in findings:
            lines += ["", *experiment_markdown(finding, pictures, language)]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{file} cannot be written: {error.strerror or error}",
            fix="choose a writable path",
        ) from None
    return file


def experiment_markdown(finding: Finding, pictures: Path, language: str) -> list[str]:
    experiment = finding.experiment
    lines = [f'<a id="{experiment.name}"></a>', "", f"## {experiment.title[language]}", ""]
    lines += [*(f"{line}  " for line in explanation_lines(finding, language)), ""]
    head = [LABELS[name][language] for name in ("check", "holds", "numbers")]
    lines += [f"| {' | '.join(head)} |", "|---|---|---|"]
    rows = [
        (check.statement[language], HOLDS[check.holds][language], finding.measured(check, language))
        for check in finding.checks
    ]
    lines += [f"| {' | '.join(escape_cell(cell) for cell in row)} |" for row in rows]
    verdict = f"**{LABELS['verdict'][language]}: {VERDICTS[finding.verdict][language]}**"
    lines += ["", f"{verdict} (`{rerun_command(experiment.name, finding)}`)"]
    suffix = ".ja" if language == "ja" and has_japanese_font() else ""
    for name, figure in finding.figures(language).items():
        with finding.using_numbers():
            [svg] = save_figure(figure, pictures / f"lab-{name}{suffix}", [".svg"])
        lines += ["", f"![{name}]({pictures.name}/{svg.name})"]
    return lines


def escape_cell(cell: str) -> str:
    """Escape bars, which would end a Markdown cell."""
    return cell.replace("|", "\\|")
