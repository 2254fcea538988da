"""Measuring speed: operations beside their peers (`ops`), whole training steps scheme beside scheme (`train`).

Every claim is a ratio of programs that take turns in one process, after each was found right. `config` needs no torch.
"""
