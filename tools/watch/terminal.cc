#include "tools/watch/terminal.h"

#include <langinfo.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <clocale>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

// Included last, since it defines macros with common names.
#define NCURSES_NOMACROS 1
#define NCURSES_WIDECHAR 1
#include <curses.h>
#include <term.h>
#undef columns

namespace sluice::watch {
namespace {

// Used by signal handlers, so it is written before they are installed.
struct Restore {
  termios modes{};
  std::array<char, 128> text{};
  std::size_t bytes = 0;
};
Restore restore;
constexpr std::array<int, 6> kFatal = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGQUIT};
std::array<struct sigaction, kFatal.size()> before;

void restore_and_end(int number) {
  static_cast<void>(!::write(STDOUT_FILENO, restore.text.data(), restore.bytes));
  ::tcsetattr(STDOUT_FILENO, TCSANOW, &restore.modes);
  for (std::size_t i = 0; i < kFatal.size(); ++i) ::sigaction(kFatal[i], &before[i], nullptr);
  ::raise(number);
}

void keep_for_restoring() {
  restore.bytes = 0;
  for (const char* const name : {"sgr0", "cnorm", "rmcup"}) {
    std::array<char, 8> wanted{};
    std::strncpy(wanted.data(), name, wanted.size() - 1);
    const char* const text = ::tigetstr(wanted.data());
    // -1: the terminal's capability of that name has another type.
    if (text == nullptr || reinterpret_cast<std::intptr_t>(text) == -1)  // NOLINT(*-cast)
      continue;
    const std::string_view whole(text);
    const std::size_t bytes = std::min(whole.find("$<"), whole.size());  // the delay that follows
    if (restore.bytes + bytes > restore.text.size()) continue;
    std::memcpy(restore.text.data() + restore.bytes, text, bytes);
    restore.bytes += bytes;
  }
  struct sigaction action {};
  action.sa_handler = restore_and_end;
  for (std::size_t i = 0; i < kFatal.size(); ++i) ::sigaction(kFatal[i], &action, &before[i]);
}

enum Pair : short { kNoPair, kGreenPair, kYellowPair, kRedPair, kCyanPair, kMagentaPair };

attr_t attributes(Style style) {
  switch (style) {
    case Style::kTitle:
    case Style::kBad:
      return A_BOLD;
    case Style::kQuiet:
      return A_DIM;
    default:
      return A_NORMAL;
  }
}

short pair_of(Style style) {
  switch (style) {
    case Style::kGood:
      return kGreenPair;
    case Style::kWarn:
      return kYellowPair;
    case Style::kBad:
      return kRedPair;
    case Style::kCurve:
      return kCyanPair;
    case Style::kOther:
      return kMagentaPair;
    default:
      return kNoPair;
  }
}

}  // namespace

bool has_terminal() { return ::isatty(STDOUT_FILENO) == 1 && ::isatty(STDIN_FILENO) == 1; }

bool use_locale() {
  std::setlocale(LC_CTYPE, "");
  return std::strcmp(::nl_langinfo(CODESET), "UTF-8") == 0;
}

Result<std::unique_ptr<Terminal>> Terminal::open(bool with_colours) {
  const auto refused = [](const char* why) {
    return Error(ErrorCode::kUnsupported, std::string("the terminal ") + why);
  };
  int found = 0;
  if (::setupterm(nullptr, STDOUT_FILENO, &found) != OK) return refused("is unknown (TERM)");
  if (::tigetstr(const_cast<char*>("cup")) == nullptr)  // NOLINT(*-const-cast): ncurses's own
    return refused("cannot move its cursor (TERM)");
  ::tcgetattr(STDOUT_FILENO, &restore.modes);
  if (::newterm(nullptr, stdout, stdin) == nullptr) return refused("cannot be used");
  std::unique_ptr<Terminal> terminal(new Terminal());
  keep_for_restoring();
  cbreak();
  noecho();
  nonl();
  keypad(stdscr, TRUE);
  ::set_escdelay(25);
  curs_set(0);
  if (with_colours && ::has_colors()) {
    start_color();
    const short background = ::use_default_colors() == OK ? -1 : COLOR_BLACK;
    init_pair(kGreenPair, COLOR_GREEN, background);
    init_pair(kYellowPair, COLOR_YELLOW, background);
    init_pair(kRedPair, COLOR_RED, background);
    init_pair(kCyanPair, COLOR_CYAN, background);
    init_pair(kMagentaPair, COLOR_MAGENTA, background);
    terminal->with_colours_ = true;
  }
  return terminal;
}

Terminal::~Terminal() {
  endwin();
  ::tcsetattr(STDOUT_FILENO, TCSANOW, &restore.modes);
  for (std::size_t i = 0; i < kFatal.size(); ++i) ::sigaction(kFatal[i], &before[i], nullptr);
}

int Terminal::rows() const { return getmaxy(stdscr); }
int Terminal::columns() const { return getmaxx(stdscr); }

void Terminal::show(const Frame& frame) {
  werase(stdscr);
  for (int row = 0; row < frame.rows(); ++row) {
    const auto& cells = frame.row(row);
    for (int column = 0; column < frame.columns(); ++column) {
      const Frame::Cell& cell = cells[static_cast<std::size_t>(column)];
      if (cell.character == 0 || (cell.character == U' ')) continue;
      const std::array<wchar_t, 2> text = {static_cast<wchar_t>(cell.character), 0};
      cchar_t shown{};
      if (setcchar(&shown, text.data(), attributes(cell.style),
                   with_colours_ ? pair_of(cell.style) : short{0}, nullptr) == OK)
        mvwadd_wch(stdscr, row, column, &shown);
    }
  }
  wrefresh(stdscr);
}

std::optional<KeyPress> Terminal::read_key(int timeout_ms) {
  wtimeout(stdscr, timeout_ms);
  const int key = wgetch(stdscr);
  switch (key) {
    case ERR:
      return std::nullopt;
    case KEY_UP:
      return KeyPress{.key = Key::kUp};
    case KEY_DOWN:
      return KeyPress{.key = Key::kDown};
    case KEY_BTAB:
      return KeyPress{.key = Key::kBackTab};
    case '\t':
      return KeyPress{.key = Key::kTab};
    case KEY_RESIZE:
      return KeyPress{.key = Key::kResized};
    default:
      return key > 0 && key < 128 ? KeyPress{.character = static_cast<char>(key), .key = {}}
                                  : KeyPress{};
  }
}

}  // namespace sluice::watch
