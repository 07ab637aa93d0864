# Random moves, mostly forward. Reads no JSON: it only counts the games in a message.

# {"type":"hello",...,"seats":["red_0"],...,"seed":7}
/"type":"hello"/ {
    match($0, /"seed":[0-9]+/); srand(substr($0, RSTART + 7, RLENGTH - 7) + 0)
    match($0, /"seats":\[[^]]*\]/); seats = substr($0, RSTART + 9, RLENGTH - 10)
    n = split(seats, seat, ",")
    say("{\"type\":\"ready\",\"name\":\"wanderer\"}")
}

# {"type":"act","step":0,"games":[{"game":0,"seats":{...}},...]} is answered by {"actions":[{"red_0":2},...]}
/"type":"act"/ {
    games = gsub(/"game":/, "&")
    answer = ""
    for (k = 1; k <= games; k++) {
        one = ""
        for (s = 1; s <= n; s++) one = one (s > 1 ? "," : "") seat[s] ":" move()
        answer = answer (k > 1 ? "," : "") "{" one "}"
    }
    say("{\"actions\":[" answer "]}")
}

function move() { return rand() < 0.5 ? 2 : int(7 * rand()) }
function say(line) { print line; fflush() }
