# cmake -DFOLDER=DIR -DFILES=a;b -DOUT=FILE -P EmbedFiles.cmake: writes text files as a C++ source
# that defines sluice::report::page_parts(), in the given order.
cmake_minimum_required(VERSION 3.25)
set(text "// Made by cmake/EmbedFiles.cmake.\n#include \"tools/report/report_page.h\"\n\n")
string(APPEND text "namespace sluice::report {\nnamespace {\n\nconstexpr PagePart kParts[] = {\n")
foreach(name IN LISTS FILES)
  file(READ "${FOLDER}/${name}" content)
  string(APPEND text "    {\"${name}\", R\"part(" "${content}" ")part\"},\n")
endforeach()
string(APPEND text "};\n\n}  // namespace\n\n")
string(APPEND text "std::span<const PagePart> page_parts() { return kParts; }\n\n")
string(APPEND text "}  // namespace sluice::report\n")
file(WRITE "${OUT}" "${text}")
