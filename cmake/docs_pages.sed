# For Doxygen: GitHub's $`formula`$ and ```math blocks as Doxygen's \f$...\f$ and \f[...\f].
s/\$`([^`]+)`\$/\\f$\1\\f$/g
/^```math$/,/^```$/ {
  s/^```math$/\\f[/
  s/^```$/\\f]/
}
