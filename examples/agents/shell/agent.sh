# awk must take each line as it comes. mawk does so only when told, others need no telling.
case $(awk -W version </dev/null 2>&1) in
mawk*) exec awk -W interactive -f agent.awk ;;
*) exec awk -f agent.awk ;;
esac
