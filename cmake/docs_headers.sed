# For Doxygen: what every policy has is described once, here, rather than at each policy. Comments
# stay as they are.
/^ *\/\//b
s@^( *)(void check\(const char\* function\) const)@\1/** Throws invalid_input for a setting outside its range. */ \2@
s@^( *)(.*operator\(\)\(const (Args|Token<V>|EstimateArgs<V>|GradientArgs<V>|BaselineArgs|AggregateArgs|ScaleArgs|PrepassArgs<S>|RowSum)&)@\1/** The formula above, by the contract of its axis. */ \2@
