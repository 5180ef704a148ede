"""All findings as one offline page, or as Markdown with its figures beside it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from sightline.errors import InputError
from sightline.lab.experiment import Finding, Words
from sightline.lab.style import has_japanese_font, save_figure
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


def write_html(findings: Sequence[Finding], file: Path, *, language: str = "en") -> Path:
    """One self-contained page."""
    sections = [section for finding in findings for section in sections_of(finding, language)]
    return save_page(
        [*overview(findings, language), *sections],
        file,
        title=f"Sightline: {LABELS['title'][language]}",
    )


def overview(findings: Sequence[Finding], language: str) -> list[Section]:
    rows = [
        [
            finding.experiment.title[language],
            VERDICTS[finding.verdict][language],
            f"{finding.seconds:,.0f}",
            finding.tier,
        ]
        for finding in findings
    ]
    head = (
        LABELS["experiment"][language],
        LABELS["verdict"][language],
        LABELS["work"][language],
        "",
    )
    prose = [text.replace("`", "") for text in overview_texts(findings, language)]
    return [ProseSection(LABELS["title"][language], prose), TableSection("", "", head, rows)]


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
        " undecided otherwise. A claim is supported if all of its checks hold, not supported if one"
        " fails.",
        "判定は人手で書かず、数値から計算する。シードごとの値の95%区間がすべて主張の側にあれば成り立ち、"
        "すべて反対側にあれば成り立たず、"
        "またぐときは判定保留とする。すべての項目が成り立てば支持され、1つでも成り立たなければ支持されない。",
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
    note = [ENGLISH_FIGURES] if language == "ja" and not has_japanese_font() else []
    return [*(text[language] for text in texts), *note]


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
    return [f"{LABELS[name][language]}: {text}" for name, text in lines.items()] + corrected


def write_markdown(findings: Sequence[Finding], file: Path, *, language: str = "en") -> Path:
    """A Markdown page with its figures in the folder `figures` beside it."""
    pictures = file.parent / "figures"
    try:
        pictures.mkdir(parents=True, exist_ok=True)
        lines = [
            f"# {LABELS['title'][language]}",
            "",
            *(f"{text}  " for text in overview_texts(findings, language)),
            "",
        ]
        head = [LABELS[name][language] for name in ("experiment", "verdict", "work")]
        lines += [f"| {' | '.join(head)} |", "|---|---|--:|"]
        for finding in findings:
            title = f"[{finding.experiment.title[language]}](#{finding.experiment.name})"
            lines.append(
                f"| {title} | {VERDICTS[finding.verdict][language]} | {finding.seconds:,.0f} |"
            )
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
