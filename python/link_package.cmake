# Links every file of the package's sources, FROM, into TO.
file(GLOB_RECURSE files RELATIVE ${FROM} ${FROM}/*.py ${FROM}/py.typed)
foreach(file ${files})
  cmake_path(GET file PARENT_PATH folder)
  file(MAKE_DIRECTORY ${TO}/${folder})
  file(CREATE_LINK ${FROM}/${file} ${TO}/${file} SYMBOLIC)
endforeach()
