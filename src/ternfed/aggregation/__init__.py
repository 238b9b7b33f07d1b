"""One file per aggregation rule: how the server makes one model of those that arrive in a round.

A rule is found by name (`median` is `ternfed.aggregation.median:aggregation`) or as `module:function` in anyone's own
package; nothing is registered. The function returns an `Aggregation`.
"""
