"""Computes what the page "Will it fit?" answers: `python -m tools.calculator`, with words for some cells only.

python -m tools.calculator                  the cells that docs/calculator.json lacks
python -m tools.calculator gpt2 --again     every cell of GPT-2
"""

import argparse

from tools.calculator import tables

if __name__ == "__main__":
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m tools.calculator", description=__doc__, formatter_class=form)
    parser.add_argument("words", nargs="*", help="only the cells or GPUs that have one of these words in their names")
    parser.add_argument("--again", action="store_true", help="compute what is stored too")
    options = parser.parse_args()
    for line in tables.compute(options.words, options.again):
        print(line, flush=True)
