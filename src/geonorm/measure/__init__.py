"""The geometry of hidden states: what sub-layers and norms do to the residual stream, in any model.

To be read in this order: `metrics` (the definitions), `accumulate` (over any number of tokens), `anatomy` and `observe`
(the sub-layers of a model, watched while it runs), `recognise` (the rule of a stock model, by `record`, `fits`,
`take_apart` and `rebuild`), `capture` (their measures), `probe` (a model, its inputs and loss). `config` needs no
torch."""
