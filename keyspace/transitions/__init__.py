"""One module a transition: load, decide, write, record. Each runs in an open transaction and commits nothing itself.

A stated budget holds for names of up to 20 characters and the longest plain failure; with the widest names and every byte of
a failure escaped, the heaviest transition weighs an eighth of the default allowance. Tests measure both.
"""
