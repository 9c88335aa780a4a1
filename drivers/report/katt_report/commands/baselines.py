"""`katt-report baselines`: naive judged against PyTorch."""

from pathlib import Path

from katt_report.commands.parser import Parser, positive


def run(arguments: list[str]) -> int:
    parser = Parser(
        prog="katt-report baselines",
        description="Lists the cases in which naive is too slow beside PyTorch eager; exit status 1 if one is not "
        "explained.",
        examples={"katt-report baselines mine.h5 --limit 2": "cases in which naive takes twice as long as PyTorch eager"},
    )
    parser.add_argument("result", type=Path, metavar="RESULT.h5")
    parser.add_argument("--explained", type=Path, metavar="FILE.toml",
                        help="tables [[explained]]: columns, their values, and the reason")  # fmt: skip
    parser.add_argument("--limit", type=positive, default=1.5, metavar="X", help="naive's time over the peer's (1.5)")
    parser.add_argument("--peer", default="torch_eager", metavar="NAME",
                        help="what naive is held against (torch_eager)")  # fmt: skip
    options = parser.parse_args(arguments)
    from katt_report.baselines import judge, read_explanations, table_text
    from katt_report.isolation import load_isolated

    results = load_isolated(options.result)
    explanations = read_explanations(options.explained, list(results.points.columns)) if options.explained else []
    verdict = judge(results, explanations, options.limit, options.peer)
    print(table_text(verdict))
    return 1 if verdict.unexplained else 0
