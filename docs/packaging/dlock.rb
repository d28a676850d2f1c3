# A Homebrew formula: the extension for Homebrew's PostgreSQL, on Linux and macOS.
# The command line and the C library are built on Linux only, because their
# Makefile uses options of the GNU linker.
#
#   brew install --HEAD --formula docs/packaging/dlock.rb
#
# How far it was checked: its Ruby is valid (ruby -c).  Homebrew has not run it yet,
# and nobody has built dlock on macOS.
class Dlock < Formula
  desc "Locks with a time to live in plain SQL, for PostgreSQL"
  homepage "https://dlock.example"
  license "PostgreSQL"
  head "https://dlock.example/dlock.git", branch: "main"

  depends_on "pkgconf" => :build
  depends_on "postgresql@17"

  def postgresql
    Formula["postgresql@17"]
  end

  def install
    pg_config = postgresql.opt_bin/"pg_config"
    system "make", "PG_CONFIG=#{pg_config}", "with_llvm=no"
    # into the folders of the formula, which Homebrew links into those of PostgreSQL
    system "make", "install", "PG_CONFIG=#{pg_config}", "with_llvm=no",
           "datadir=#{share}/#{postgresql.name}", "pkglibdir=#{lib}/#{postgresql.name}"
    system "make", "-C", "client/c", "install", "prefix=#{prefix}", "PG_CONFIG=#{pg_config}" if OS.linux?
  end

  def caveats
    <<~EOS
      Add dlock to shared_preload_libraries in postgresql.conf, and restart the server.
    EOS
  end

  test do
    assert_path_exists share/postgresql.name/"extension/dlock.control"
  end
end
