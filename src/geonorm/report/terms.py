"""The glossary of a page: its terms link to their explanations at the foot of the page."""

import re
from html import escape

TERMS = {
    "not resolved": "The 95 % interval of the difference contains 0: these runs do not tell which is better.",
    "resolved": "The 95 % interval of the difference does not contain 0.",
    "not after Holm": "Resolved by itself, but not among all comparisons of the page, of which some miss 0 by chance.",
    "difference (95 %)": "The mean of the differences paired by seed, with its 95 % interval: runs of equal seed "
                         "share data order, so that what it does to both cancels. The verdict rests on this one.",
    "val loss": "Mean ± standard deviation over seeds, in nats per token.",
    "p, Holm": "The chance of such a difference between equal schemes: by itself, and adjusted for all comparisons.",
    "moderated": "A second look: the difference of the means, each variance drawn towards that of all schemes. It is "
                 "no verdict, and too narrow for a scheme that scatters far more than the others.",
    "lr": "The best learning rate of those tried. Interior: both neighbours are worse. Edge: a better one may lie "
          "outside.",
    "spikes": "Values over 6 standard deviations above the mean of the 100 steps before, of the loss / of the gradient "
              "norm, summed over the runs.",
    "clamped": "Updates whose angle reached the scheme's limit, GeoNorm's pi/4 for one: they turn the token by the "
               "limit, however long they are.",
    "speed-up (95 %)": "How many times the tokens (along sizes: the compute) the baseline needs for the loss of the "
                       "scheme; where that lies outside its curve, for the loss of the baseline on the curve of the "
                       "scheme. It is read between neighbouring budgets, seed by seed, and never extrapolated: > and < "
                       "are bounds. Intervals are over seeds (the budgets of a seed share a prefix of training), under "
                       "moderated variances. What a step costs in time is not in it: geonorm bench train measures "
                       "that.",
    "in one more size": "Where 95 % of differences at another size of this kind would lie.",
    "FLOP": "6 x parameters of the baseline x tokens, without tables that are only looked up and without attention's "
            "scores.",
    "per parameter": "Tokens for each parameter: of all, and of all but tables that are only looked up.",
    "step": "The tangential part of x' − x over |x|: how far a sub-layer moves a token along the sphere.",
    "implied step law": "The decay that the steps follow over blocks, with R² of the logarithms.",
    "power of t": "The exponent of t fitted to the steps of blocks t, with its 95 % interval: −1 is harmonic decay.",
    "effective rank": "The exponential of the entropy of the squared singular values of the tokens' directions.",
    "cos of pairs": "Mean cosine between tokens of one sequence.",
    "rotation": "The angle by which a norm turns a token.",
    "|cos| to 1": "Mean |cosine| to (1, ..., 1), the direction that LayerNorm takes out.",
    "its null": "The same for random directions.",
    "spread of |x|": "Standard deviation of |x| over tokens before the norms of the blocks, and after them.",
    "theory": "The closed equation of equiangular tokens, and the limit of large t.",
    "collapse": "The depth-time at which the mean cosine reaches 0.99.",
    "not at its end": "1 − cos is not far below 0.01 yet, or its slope drifts, so that no law is fitted.",
    "speed factor, radius law": "A token moves by 1/s of the attention's pull; r' is the growth of its length.",
    "coherence": "How much of the sub-layers' turns adds up instead of cancelling.",
    "turn": "The mean angle, in radians, between what the head reads before and after one step of Adam on the hidden "
            "matrices: rate x width x coherence x sum of angles. Where it grows with size, theory has the best "
            "learning rate fall as much.",
    "sum of angles": "The angles by which sub-layers turn a token at initialization.",
}  # fmt: skip
"""By term, its explanation, as a reader needs it beside the table."""
IN_PROSE = ("not resolved", "resolved", "not after Holm", "moderated", "clamped", "effective rank")
"""Terms that are links wherever they stand; the others are links only as a whole cell or heading."""
PATTERN = re.compile("|".join(rf"(?<![\w(=]){term}(?![\w=])" for term in IN_PROSE))


def anchor(text: str) -> str:
    """The id of a part of the page.

    >>> anchor("|cos| to 1")
    'cos-to-1'
    """
    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))


def linked(text: str) -> str:
    """The text as HTML, with a link from each term to its explanation.

    >>> linked("share of clamped updates")
    'share of <a class="term" href="#term-clamped">clamped</a> updates'
    """
    link = '<a class="term" href="#term-{}">{}</a>'
    if text in TERMS:
        return link.format(anchor(text), escape(text))
    return PATTERN.sub(lambda match: link.format(anchor(match[0]), match[0]), escape(text))


def glossary(body: str) -> str:
    """The explanations of the terms that this HTML links to."""
    entries = "".join(
        f'<div id="term-{anchor(term)}"><dt>{escape(term)}</dt><dd>{escape(text)}</dd></div>'
        for term, text in TERMS.items()
        if f'"#term-{anchor(term)}"' in body
    )
    return f'<section id="terms"><h2>Terms</h2><dl class="terms">{entries}</dl></section>' if entries else ""
