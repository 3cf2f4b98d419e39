# The target docs: every page and every public header as a site with search, by Doxygen, in
# docs/html of the build folder. Whatever Doxygen warns of is an error, such as an undocumented
# public member or a dead reference. Without Doxygen and Python there is no target. Formulas are
# rendered by MathJax: by Debian's (libjs-mathjax) where it is found, so that the site needs no
# network, else by the one that Doxygen names.
#
# Not on the site are lanes/, which no user calls, namespaces detail, and the headers of trainers,
# whose values are in the tables of the page of presets.

# Every page of the project. The tests of pages read the list, too.
file(GLOB gdpo_pages CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/*.md
  ${PROJECT_SOURCE_DIR}/.github/[A-Z]*.md ${PROJECT_SOURCE_DIR}/*/README.md
  ${PROJECT_SOURCE_DIR}/*/*/README.md ${PROJECT_SOURCE_DIR}/include/gdpo/*/README.md
  ${PROJECT_SOURCE_DIR}/include/gdpo/loss/surrogates/README.md
  ${PROJECT_SOURCE_DIR}/bench/corrections/tables.md
  ${PROJECT_SOURCE_DIR}/bench/small_groups/tables.md
  ${PROJECT_SOURCE_DIR}/examples/python/trainers/README.md
  ${PROJECT_SOURCE_DIR}/examples/python/trainers/*/README.md
  ${PROJECT_SOURCE_DIR}/tests/golden/released/README.md
  ${PROJECT_SOURCE_DIR}/tests/tool/resolution/logs/README.md)

find_package(Doxygen 1.9 QUIET)
find_package(Python3 COMPONENTS Interpreter QUIET)
if(NOT DOXYGEN_FOUND OR NOT Python3_FOUND)
  gdpo_leave_out("the target docs" Doxygen Python3)
  return()
endif()

set(DOXYGEN_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/docs)
set(DOXYGEN_USE_MDFILE_AS_MAINPAGE ${PROJECT_SOURCE_DIR}/README.md)
set(DOXYGEN_IMAGE_PATH ${PROJECT_SOURCE_DIR}/examples
  ${PROJECT_SOURCE_DIR}/include/gdpo/loss/surrogates)
set(DOXYGEN_STRIP_FROM_PATH ${PROJECT_SOURCE_DIR})
set(DOXYGEN_STRIP_FROM_INC_PATH ${PROJECT_SOURCE_DIR}/include)
set(DOXYGEN_FILE_PATTERNS *.hpp)
set(DOXYGEN_EXCLUDE_PATTERNS */gdpo/lanes/* */presets/*.hpp)
set(DOXYGEN_EXCLUDE_SYMBOLS detail *::detail *::detail::*)
set(DOXYGEN_JAVADOC_AUTOBRIEF YES)
set(DOXYGEN_QUIET YES)
set(DOXYGEN_WARN_AS_ERROR FAIL_ON_WARNINGS)
set(DOXYGEN_TOC_INCLUDE_HEADINGS 2)
set(DOXYGEN_GENERATE_TREEVIEW YES)
set(DOXYGEN_HAVE_DOT NO)
set(DOXYGEN_HTML_EXTRA_STYLESHEET ${CMAKE_CURRENT_LIST_DIR}/docs.css)
set(DOXYGEN_CLASS_GRAPH NO)
set(DOXYGEN_SHOW_INCLUDE_FILES NO)
set(DOXYGEN_EXTRACT_STATIC YES)

# The preprocessor of Doxygen sees the code without its macros of inlining and name spaces.
set(DOXYGEN_MACRO_EXPANSION YES)
set(DOXYGEN_EXPAND_ONLY_PREDEF YES)
set(DOXYGEN_PREDEFINED "GDPO_BEGIN_NAMESPACE=namespace gdpo {" "GDPO_END_NAMESPACE=}" GDPO_INLINE=
  GDPO_DEVICE= GDPO_HOST_INLINE= GDPO_DATA_INLINE= GDPO_DATA_HOST_INLINE= GDPO_NOINLINE= GDPO_COLD=
  GDPO_CALLS_ANY= DLPACK_MAJOR_VERSION=1 "GDPO_TORCH_PARAMETERS=const Array& batch"
  GDPO_TORCH_SCHEMA=)

# What Doxygen reads: pages by pages.py (formulas, anchors), and headers in which docs_headers.sed
# says once what every policy has.
set(DOXYGEN_FILTER_PATTERNS
  "*.md=${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/pages/pages.py site ${PROJECT_SOURCE_DIR}"
  "*.hpp=sed -E -f ${CMAKE_CURRENT_LIST_DIR}/docs_headers.sed")

set(DOXYGEN_USE_MATHJAX YES)
find_path(GDPO_MATHJAX MathJax.js PATHS /usr/share/javascript/mathjax NO_DEFAULT_PATH)
mark_as_advanced(GDPO_MATHJAX)
if(GDPO_MATHJAX)
  set(DOXYGEN_MATHJAX_RELPATH mathjax)
endif()

doxygen_add_docs(docs ${gdpo_pages} ${PROJECT_SOURCE_DIR}/include
  COMMENT "The site: ${DOXYGEN_OUTPUT_DIRECTORY}/html/index.html")
if(GDPO_MATHJAX)
  add_custom_command(TARGET docs POST_BUILD COMMAND ${CMAKE_COMMAND} -E create_symlink
    ${GDPO_MATHJAX} ${DOXYGEN_OUTPUT_DIRECTORY}/html/mathjax VERBATIM)
endif()
