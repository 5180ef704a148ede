"""One block of a decoder, symbol by symbol: its formulas and shapes, and its numbers at a size
that fits a page (N = 4, d = 8, h = 2).

page = block_page(PUBLISHED["gpt2"](), name="gpt2")            formulas and shapes, real sizes
page = block_numbers(PUBLISHED["gpt2"](), name="gpt2", seed=0)  the same formulas with numbers
terminal.render_block(page, width=80), markdown.block_markdown(page), page.to_plain()
"""

from sightline.explain.block.page import BlockPage, block_numbers, block_page

__all__ = ["BlockPage", "block_numbers", "block_page"]
